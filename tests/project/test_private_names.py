"""Private names of torch, jax and jaxlib live in one file each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lazytpu"
ALONE = PACKAGE / "distributed/helper.py"  # runs as a program that imports nothing of lazytpu
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != ALONE]
HOME = {"torch": PACKAGE / "frontend/torch_private.py", "jax": PACKAGE / "runtime/client.py"}
HOME["jaxlib"] = PACKAGE / "runtime/mlir.py"
# Underscored, but named to backends by torch's documentation: the type of an op, dispatch modes, decompositions.
DOCUMENTED = {
    "torch._ops.OpOverload",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch._decomp.core_aten_decompositions",
    "torch._decomp.decomposition_table",
}


def private(name: str) -> bool:
    """True for a dotted name such as torch._C or jax._src.core, and for all of jaxlib, which has no public API."""
    library, *rest = name.split(".")
    if library not in HOME or name in DOCUMENTED or name.startswith("torch.ops."):  # an op's own name may begin with _
        return False
    return library == "jaxlib" or any(part.startswith("_") and not part.startswith("__") for part in rest)


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything a module imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def reached(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every chain of attributes that starts at a plain name, such as torch._C._acc."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts, at = [node.attr], node.value
            while isinstance(at, ast.Attribute):
                parts.append(at.attr)
                at = at.value
            if isinstance(at, ast.Name):
                yield node.lineno, ".".join((at.id, *reversed(parts)))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_private_names_stay_at_home(path: Path):
    tree = ast.parse(path.read_text())
    reached_elsewhere = {
        f"{path.relative_to(ROOT)}:{line}: {name}; import it from {HOME[name.split('.')[0]].relative_to(ROOT)}"
        for line, name in (*imported(tree), *reached(tree))
        if private(name) and path != HOME[name.split(".")[0]]
    }
    assert not reached_elsewhere, "\n" + "\n".join(sorted(reached_elsewhere))


@pytest.mark.parametrize(("library", "version"), [("torch", "2.13"), ("jax", "0.10.2"), ("jaxlib", "0.10.2")])
def test_each_home_names_the_version_it_was_checked_against(library: str, version: str):
    pins = (ROOT / "pyproject.toml").read_text()
    assert version in HOME[library].read_text()
    assert f'"{library}=={version}"' in pins or f'"{library}>={version},' in pins
