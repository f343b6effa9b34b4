"""Programs as files (LAZYTPU_DUMP): `007-train_step.imported.mlir` before the passes, `007-train_step.lazytpu.mlir`
after them, `007-train_step.stablehlo.mlir`.

Files of the dialect are input for `lazytpu-opt`, those of StableHLO for any tool that reads it.
`007-train_step.why.txt` says why the program was compiled, `007-train_step.about.txt` names its script and models.
`007-train_step.json` describes the program's trace and how a cut runs it: `lazytpu-show pack --topology` uses it to
compile programs for another machine.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path


def write(directory: str | os.PathLike[str], number: int, name: str, suffix: str, text: str) -> Path:
    """Write a text about program `number` to the file with this suffix in `directory`. Returns its path.

    The directory is created if needed. The file appears atomically: it is written under another name and then moved.

    Raises OSError, which names LAZYTPU_DUMP, if the directory cannot be written.
    """
    path = Path(directory) / f"{number:03d}-{file_name(name)}.{suffix}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        reason = f"cannot write the dump {path}: {error.strerror}. Set LAZYTPU_DUMP to a writable folder."
        raise OSError(error.errno, reason) from error
    return path


def file_name(name: str) -> str:
    """Convert a program's name to a part of a file name: letters, digits, `_`, `-` and `.`, at most 80 of them."""
    return re.sub(r"[^\w.-]+", "_", name).strip("._")[:80] or "program"
