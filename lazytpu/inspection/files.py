"""The modules of a dump that a folder stands for in a command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

IMPORTED, COMPILED = ".imported.mlir", ".lazytpu.mlir"
"Suffixes of files that LAZYTPU_DUMP writes: a module before the passes, and after them."


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
