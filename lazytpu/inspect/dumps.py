"""Programs as files (LAZYTPU_DUMP): `007-train_step.lazytpu.mlir`, `007-train_step.stablehlo.mlir`.

The files of the dialect are input for `lazytpu-opt`, those of StableHLO for any tool that reads it.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path


def write(directory: str | os.PathLike[str], number: int, name: str, stage: str, text: str) -> Path:
    """Write the text of program `number` at a stage ("lazytpu", "stablehlo") to a file of `directory`; returns its
    path.

    The directory is made if need be. A reader never sees half a file: the text is written beside it and moved into
    place.

    Raises OSError that names LAZYTPU_DUMP when the directory cannot be written.
    """
    path = Path(directory) / f"{number:03d}-{file_name(name)}.{stage}.mlir"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        reason = f"cannot write the dump {path}: {error.strerror}. Set LAZYTPU_DUMP to a folder that can be written."
        raise OSError(error.errno, reason) from error
    return path


def file_name(name: str) -> str:
    """A program's name as part of a file name: letters, digits, `_`, `-` and `.`, at most 80 of them."""
    return re.sub(r"[^\w.-]+", "_", name).strip("._")[:80] or "program"
