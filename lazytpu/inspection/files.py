"""Which modules of a dump a command means by a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

IMPORTED, COMPILED = ".imported.mlir", ".lazytpu.mlir"
"Ends of file names that LAZYTPU_DUMP writes: a module as it came to the passes, and as they left it."


def modules(paths: Sequence[Path]) -> list[Path]:
    """The modules that paths stand for: a folder for all of its .mlir files, in order. Raises ValueError for one
    without any."""
    return [module for path in paths for module in (_inside(path, ".mlir") if path.is_dir() else [path])]


def largest(path: Path, kind: str = IMPORTED) -> Path:
    """The module that a path stands for: a folder for the largest that ends in `kind`. Raises ValueError for a folder
    without any."""
    return max(_inside(path, kind), key=lambda module: module.stat().st_size) if path.is_dir() else path


def _inside(folder: Path, kind: str) -> list[Path]:
    found = sorted(folder.glob(f"*{kind}"))
    if not found:
        raise ValueError(f"{folder} holds no {kind} file; run the script with LAZYTPU_DUMP={folder} to write some")
    return found
