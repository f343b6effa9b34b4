"""The folder of an export: a manifest in JSON, the weights, and for each platform the program in two forms."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FORMAT = 1
"The version of the folder's layout and of the manifest."
MANIFEST, WEIGHTS = "manifest.json", "weights.safetensors"


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Give a new folder to write into, which replaces `folder` atomically at the end. After an error, `folder` is
    unchanged.

    Raises FileExistsError when it contains anything but an export, and OSError.
    """
    if folder.exists() and not (folder / MANIFEST).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not an exported program; save into another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    new, old = beside / "new", beside / "old"
    try:
        new.mkdir()
        yield new
        if folder.exists():
            os.rename(folder, old)
        try:
            os.rename(new, folder)
        except BaseException:
            if old.exists():
                os.rename(old, folder)
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
