"""Private names of torch, jax and jaxlib are used in one file each."""

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
ALONE = PACKAGE / "distributed/helper.py"  # a program of its own, which does not load torch
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != ALONE]
HOME = {"torch": PACKAGE / "frontend/torch_private.py", "jax": PACKAGE / "runtime/xla/jax_private.py"}
HOME["jaxlib"] = PACKAGE / "runtime/xla/mlir.py"
# With an underscore, but public for backends by torch's documentation: the type of an op, dispatch modes,
# decompositions.
DOCUMENTED = {
    "torch._ops.OpOverload",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch._decomp.core_aten_decompositions",
    "torch._decomp.decomposition_table",
}


def private(name: str) -> bool:
    """Whether a dotted name is private, such as torch._C or jax._src.core, or any of jaxlib, which has no public
    API."""
    library, *attributes = name.split(".")
    if library not in HOME or name in DOCUMENTED or name.startswith("torch.ops."):  # an op's own name may begin with _
        return False
    return library == "jaxlib" or any(name_.startswith("_") and not name_.startswith("__") for name_ in attributes)


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Return (line, dotted name) of each import in a module, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def reached(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Return (line, dotted name) of every chain of attributes on a plain name, such as torch._C._acc."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts, at = [node.attr], node.value
            while isinstance(at, ast.Attribute):
                parts.append(at.attr)
                at = at.value
            if isinstance(at, ast.Name):
                yield node.lineno, ".".join((at.id, *reversed(parts)))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_private_names_are_used_in_one_file(path: Path):
    tree = ast.parse(path.read_text())
    reached_elsewhere = {
        f"{path.relative_to(ROOT)}:{line}: {name}; import it from {HOME[name.split('.')[0]].relative_to(ROOT)}"
        for line, name in (*imported(tree), *reached(tree))
        if private(name) and path != HOME[name.split(".")[0]]
    }
    assert not reached_elsewhere, "\n" + "\n".join(sorted(reached_elsewhere))


@pytest.mark.parametrize("library", ["torch", "jax", "jaxlib"])
def test_file_names_the_releases_it_was_checked_with(library: str):
    """Every release that pip may install is checked, and each is in at least one combination."""
    home = importlib.import_module(".".join(HOME[library].relative_to(ROOT).with_suffix("").parts))
    field = "torch" if library == "torch" else "jax"
    assert set(home.CHECKED) == {getattr(combination, field) for combination in versions.CHECKED}
    least, most = re.findall(rf'"{library}>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text())[0]
    assert versions.minor(least) == home.CHECKED[0]
    major, last = versions.release(home.CHECKED[-1])
    assert most == f"{major}.{last + 1}"


def test_only_these_files_compare_versions():
    """Other files look up a name, not a version."""
    homes = {*HOME.values(), PACKAGE / "by_release.py"}
    elsewhere = [path for path in FILES if path not in homes and re.search(r"\bVERSION [<>]", path.read_text())]
    assert elsewhere == []


def test_installed_releases_have_every_name():
    """Every name of the libraries in the package's source, and every attribute that it replaces later."""
    done = subprocess.run([sys.executable, "-m", "tests.project.names"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
