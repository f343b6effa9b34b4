"""Programs as files (LAZYTPU_DUMP): `007-train_step.imported.mlir` before the passes, `007-train_step.lazytpu.mlir`
after them, `007-train_step.stablehlo.mlir`.

Files of the dialect are input for `lazytpu-opt`, those of StableHLO for any tool that reads it.
`007-train_step.why.txt` says why the program was compiled, `007-train_step.about.txt` names its script and models.
`007-train_step.json` describes the program's trace and how a cut runs it: `lazytpu-show pack --topology` uses it to
compile programs for another machine.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(directory: str | os.PathLike[str], number: int, name: str, stage: str, text: str) -> Path:
    """Write the text of program `number` at a stage ("imported", "lazytpu", "stablehlo") to a file in `directory`.
    Returns its path.

    The directory is created if needed. The file appears atomically: it is written under another name and then moved.

    Raises OSError, which names LAZYTPU_DUMP, if the directory cannot be written.
    """
    return _write(Path(directory) / f"{number:03d}-{file_name(name)}.{stage}.mlir", text)


def write_reason(directory: str | os.PathLike[str], number: int, name: str, reason: str) -> Path:
    """Write why program `number` was compiled. Raises OSError, as `write` does."""
    return _write(Path(directory) / f"{number:03d}-{file_name(name)}.why.txt", reason + "\n")


def write_about(directory: str | os.PathLike[str], number: int, name: str, about: str) -> Path:
    """Write the origin of program `number` (`lazytpu.inspection.about`). Raises OSError, as `write` does."""
    return _write(Path(directory) / f"{number:03d}-{file_name(name)}.about.txt", about + "\n")


def write_trace(directory: str | os.PathLike[str], number: int, name: str, trace: Mapping[str, Any]) -> Path:
    """Write the description of program `number`'s trace as JSON (`lazytpu.engine.trace_cache.lookup.dumped`). Raises
    OSError, as `write` does."""
    return _write(Path(directory) / f"{number:03d}-{file_name(name)}.json", json.dumps(trace, indent=1))


def _write(path: Path, text: str) -> Path:
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
