"""What a function captures: the variables of its closure and the plain globals that it reads.

They are part of a kernel like its static arguments: a changed one is another kernel. A function that changes them while
it is traced has a side effect.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from lazytpu.frontend.recording.keys import exact
from lazytpu.kernels import errors

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Captured:
    """The captured variables of some functions, as cells and names of globals."""

    def __init__(self, cells: dict[str, Any], globals_: dict[str, dict[str, Any]]) -> None:
        self.cells = cells
        self.globals = globals_

    def now(self) -> tuple[Any, ...]:
        """Their values, as part of a key: numbers and texts by value, everything else by identity."""
        if not self.cells and not self.globals:
            return ()
        cells = [_key(_contents(cell)) for cell in self.cells.values()]
        return (*cells, *[_key(space.get(name)) for name, space in self.globals.items()])

    @contextmanager
    def unchanged(self, name: str) -> Generator[None]:
        """Raise RuntimeError when the block changes one."""
        before = self.now()
        yield
        after = self.now()
        if before != after:
            names = [*self.cells, *self.globals]
            changed = [n for n, one, other in zip(names, before, after, strict=True) if one != other]
            raise errors.side_effect(name, f"it changes {', '.join(changed)}")


def of(function: Callable[..., Any]) -> Captured:
    """What a function captures, and the functions in its closure."""
    cells: dict[str, Any] = {}
    globals_: dict[str, dict[str, Any]] = {}
    _collect(function, cells, globals_, set())
    return Captured(cells, globals_)


def _collect(function: Any, cells: dict[str, Any], globals_: dict[str, dict[str, Any]], seen: set[int]) -> None:
    while not isinstance(function, FunctionType):
        inner = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
        if inner is None or id(inner) in seen:
            return
        seen.add(id(inner))
        function = inner
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        cells[f"{name} of {function.__qualname__}" if name in cells else name] = cell
        _collect_value(_contents(cell), cells, globals_, seen)
    space = function.__globals__
    for name in _names(function.__code__):
        if name in space:
            if isinstance(space[name], _PLAIN):
                globals_[name] = space
            elif isinstance(space[name], FunctionType) and space[name].__module__ == function.__module__:
                _collect_value(space[name], cells, globals_, seen)


def _collect_value(value: Any, cells: dict[str, Any], globals_: dict[str, dict[str, Any]], seen: set[int]) -> None:
    if isinstance(value, FunctionType | functools.partial):
        _collect(value, cells, globals_, seen)


def _names(code: CodeType) -> set[str]:
    """The names that code and the functions in it look up."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _key(value: Any) -> Any:
    return exact(value) if isinstance(value, _PLAIN) else id(value)
