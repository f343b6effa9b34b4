"""Private names of torch, jax and jaxlib live in one file each."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lazytpu import versions

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lazytpu"
ALONE = PACKAGE / "distributed/helper.py"  # runs as a program that imports nothing of lazytpu
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != ALONE]
HOME = {"torch": PACKAGE / "frontend/torch_private.py", "jax": PACKAGE / "runtime/xla/jax_private.py"}
HOME["jaxlib"] = PACKAGE / "runtime/xla/mlir.py"
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


@pytest.mark.parametrize("library", ["torch", "jax", "jaxlib"])
def test_each_home_names_the_releases_it_was_checked_against(library: str):
    """All of the range that pip may install, and one combination at least has each."""
    home = importlib.import_module(".".join(HOME[library].relative_to(ROOT).with_suffix("").parts))
    field = "torch" if library == "torch" else "jax"
    assert set(home.CHECKED) == {getattr(each, field) for each in versions.CHECKED}
    least, most = re.findall(rf'"{library}>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text())[0]
    assert versions.minor(least) == home.CHECKED[0]
    major, last = versions.release(home.CHECKED[-1])
    assert most == f"{major}.{last + 1}"


def test_only_homes_compare_versions():
    """Elsewhere a name is looked up, not a version."""
    homes = {*HOME.values(), PACKAGE / "by_release.py"}
    elsewhere = [path for path in FILES if path not in homes and re.search(r"\bVERSION [<>]", path.read_text())]
    assert elsewhere == []


def test_the_installed_releases_have_every_name():
    """Every name of the libraries that the package mentions, and every attribute that it replaces later."""
    done = subprocess.run([sys.executable, "-m", "tests.project.names"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
