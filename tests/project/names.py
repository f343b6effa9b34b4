"""List the names of torch, jax, jaxlib and xDSL that lazytpu uses, and the names missing in the installed releases.

`python -m tests.project.names` prints the missing names with their places, and exits 1 if there are any. It reads
lazytpu's source without importing it, so it works even if lazytpu's own import fails.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lazytpu"
LIBRARIES = ("torch", "jax", "jaxlib", "xdsl")
OURS = re.compile(r"torch\.(tpu|ops\.lazytpu)\b")
"""The attributes that lazytpu adds to torch."""


def _version(library: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", metadata.version(library).partition("+")[0])))


class Names(ast.NodeVisitor):
    """Collects (line, dotted name) of a file's uses of the libraries, by imports and by chains of attributes. Of names
    that depend on `VERSION`, only the installed release's."""

    def __init__(self, path: Path) -> None:
        self.found: set[tuple[int, str]] = set()
        self.known: dict[str, str] = {}
        self.library = "jax" if path.name == "jax_private.py" else "torch"
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.With | ast.If):
                self._imports(node)
        self._imports(tree)
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = self.chain(node.value)
                if name:
                    self.known[node.targets[0].id] = name
        self.visit(tree)

    def _imports(self, tree: ast.AST) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.partition(".")[0] in LIBRARIES:
                        self.found.add((node.lineno, alias.name))
                        top = alias.name if alias.asname else alias.name.partition(".")[0]
                        self.known[alias.asname or top] = top
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in LIBRARIES:
                for alias in node.names:
                    self.found.add((node.lineno, f"{node.module}.{alias.name}"))
                    self.known[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def chain(self, node: ast.AST) -> str | None:
        """Return the dotted name of an expression; None if it does not belong to a library."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := self.chain(node.value)):
            return f"{owner}.{node.attr}"
        return None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self.chain(node)
        if name is None:
            self.generic_visit(node)
        else:
            self.found.add((node.lineno, name))

    def visit_IfExp(self, node: ast.IfExp) -> None:
        if "VERSION" in ast.unparse(node.test):
            holds = eval(ast.unparse(node.test), {"VERSION": _version(self.library)})
            self.visit(node.body if holds else node.orelse)
        else:
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Its parameters and variables hide imports of the same name."""
        names = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
        names += [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        hidden = {name: self.known.pop(name) for name in names if name in self.known}
        self.generic_visit(node)
        self.known.update(hidden)


def resolve(name: str) -> Any:
    """Return the value of a dotted name. Raises AttributeError or ImportError."""
    *path, last = name.split(".")
    try:
        return _attribute(name.split("."))
    except (AttributeError, ImportError):  # a function hides the module of its name
        return getattr(importlib.import_module(".".join(path)), last)


def _attribute(path: list[str]) -> Any:
    value = importlib.import_module(path[0])
    for index, name in enumerate(path[1:], 2):
        if isinstance(value, ModuleType) and not hasattr(value, name):
            importlib.import_module(".".join(path[:index]))
        value = getattr(value, name)
    return value


def names() -> Iterator[tuple[str, str]]:
    """Return (place, dotted name) of every use."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, name in sorted(Names(path).found):
            if not OURS.match(name):
                yield f"{path.relative_to(ROOT)}:{line}", name


def places(private: Any) -> Iterator[tuple[str, str]]:
    """The same for attributes that are read or replaced after another import of their module."""
    for name, value in vars(private).items():
        for place in value if isinstance(value, tuple) else (value,):
            if isinstance(place, private.Place):
                yield f"torch_private.{name}", f"{place.module}.{place.name}"


def missing() -> list[str]:
    """Return a line for each missing name."""
    lines: list[str] = []
    errors: dict[str, str] = {}

    def look(where: str, name: str) -> None:
        if name not in errors:
            try:
                resolve(name)
                errors[name] = ""
            except (AttributeError, ImportError) as error:
                errors[name] = f"{name}: {str(error).splitlines()[0]}"
        if errors[name]:
            lines.append(f"{where}: {errors[name]}")

    for where, name in names():
        look(where, name)
    try:
        private = importlib.import_module("lazytpu.frontend.torch_private")
    except (AttributeError, ImportError) as error:  # a line above has the reason
        return [*lines, f"lazytpu cannot be imported, so that attributes that it replaces were not looked at: {error}"]
    for where, name in places(private):
        look(where, name)
    return lines


if __name__ == "__main__":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    warnings.simplefilter("ignore")  # modules that torch deprecates
    lines = missing()
    print("\n".join(lines) or "all names are there")
    sys.exit(bool(lines))
