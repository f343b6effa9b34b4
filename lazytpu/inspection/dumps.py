"""Programs as files (LAZYTPU_DUMP): `007-train_step.imported.mlir` before the passes, `007-train_step.lazytpu.mlir`
after them, `007-train_step.stablehlo.mlir`.

Files of the dialect are input for `lazytpu-opt`, those of StableHLO for any tool that reads it.
`007-train_step.why.txt` says why the program was compiled, `007-train_step.about.txt` names its script and models.
`007-train_step.json` describes the program's trace and how a cut runs it: `lazytpu-show pack` uses it to compile
programs for another machine. Under LAZYTPU_TARGET, the files hold the program for that target. `modules`, `largest` and
`written_with` find the files of a dump again.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path

IMPORTED, COMPILED = ".imported.mlir", ".lazytpu.mlir"
"Suffixes of files that LAZYTPU_DUMP writes: a module before the passes, and after them."


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


def modules(paths: Sequence[Path]) -> list[Path]:
    """Return the modules that paths stand for: a folder means all of its .mlir files, in order. Raises ValueError if it
    has none."""
    return [module for path in paths for module in (_inside(path, ".mlir") if path.is_dir() else [path])]


def largest(path: Path, kind: str = IMPORTED) -> Path:
    """Return the module that a path stands for: a folder means its largest file that ends in `kind`. Raises ValueError
    if it has none."""
    return max(_inside(path, kind), key=lambda module: module.stat().st_size) if path.is_dir() else path


def _inside(folder: Path, kind: str) -> list[Path]:
    files = sorted(folder.glob(f"*{kind}"))
    if not files:
        raise ValueError(f"{folder} holds no {kind} file; run the script with LAZYTPU_DUMP={folder} to write some")
    return files


def written_with(path: Path, suffix: str) -> str | None:
    """Return the text of NNN-name.WHAT.txt next to a dumped file; None if it does not exist."""
    stem = re.sub(r"\.(imported|lazytpu|stablehlo)?\.?(mlir|json)$", "", path.name.removesuffix(f".{suffix}.txt"))
    file = path.with_name(f"{stem}.{suffix}.txt")
    return file.read_text().rstrip() if file.exists() else None
