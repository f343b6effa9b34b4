"""SECURITY.md's promise about files of a cache: they are data, until XLA loads a program."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "lazytpu"
READERS = [PACKAGE / "runtime/tpu/tpu_compiler.py"]
READERS += sorted(path for room in ("runtime/cache", "engine/trace_cache") for path in (PACKAGE / room).glob("*.py"))
UNSAFE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "eval", "exec", "import_module", "__import__"}


@pytest.mark.parametrize("path", READERS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_source_unpickles_and_evaluates_no_file(path: Path):
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {part for alias in node.names for part in alias.name.split(".")}
            names |= set((getattr(node, "module", None) or "").split("."))
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    assert not names & UNSAFE
