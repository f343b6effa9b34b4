"""The user's source lines on ops: `loc("train.py":41:0)`, and with a scope `loc("backward/blocks.2"("train.py":41:0))`
for the gradient of an op in a module."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from xdsl.dialects.builtin import UNKNOWN_LOC, FileLineColLoc, IntAttr, LocationAttr, NameLoc, StringAttr

from lazytpu.ir.scope import OUTSIDE, Scope, common_module, scope_of


class ScriptLine(Protocol):
    """A line of the user's script, and the path of the module whose op it recorded."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def backward(self) -> bool: ...
    @property
    def module(self) -> str: ...


def location_of(line: ScriptLine | None) -> LocationAttr:
    """The location attribute of a source line; unknown for None."""
    return UNKNOWN_LOC if line is None else place(line.file, line.line, line.backward, line.module)


@lru_cache(maxsize=4096)
def place(file: str, line: int, backward: bool, module: str = "") -> LocationAttr:
    """The location attribute of a line of a file, in a module."""
    location, scope = FileLineColLoc(StringAttr(file), IntAttr(line), IntAttr(0)), Scope(backward, module)
    return NameLoc(StringAttr(str(scope)), location) if any(scope) else location


def scope_at(location: LocationAttr) -> Scope:
    """Whether the op was recorded by a backward pass, and the path of its module."""
    return scope_of(location.desc.data) if isinstance(location, NameLoc) else OUTSIDE


def same_line(a: LocationAttr, b: LocationAttr) -> bool:
    """Whether two ops have one source line and direction, whatever their modules."""
    return a == b or (describe(a) == describe(b) and isinstance(a, NameLoc) == isinstance(b, NameLoc))


def shared(locations: Sequence[LocationAttr]) -> LocationAttr:
    """The location of an op that stands for ops at these locations, such as one in the body of a rolled loop: the line
    of the first, and the common path of their modules."""
    first, scope = locations[0], scope_at(locations[0])
    if not scope.module or all(location == first for location in locations):
        return first
    assert isinstance(first, NameLoc)
    name = str(Scope(scope.backward, common_module([scope_at(location).module for location in locations])))
    return NameLoc(StringAttr(name), first.location) if name else _inner(first)


def describe(location: LocationAttr) -> str | None:
    """A location for people to read, "train.py:41 (backward)"; None when it is unknown."""
    match location:
        case FileLineColLoc():
            return f"{location.filename.data}:{location.line.data}"
        case NameLoc():
            inner, name = location.location, location.desc.data
            within = describe(inner) if isinstance(inner, LocationAttr) else None
            if within is not None and (scope := scope_of(name)).module:
                return f"{within} (backward)" if scope.backward else within
            return f"{within} ({name})" if within else name
        case _:
            return None


def _inner(location: NameLoc) -> LocationAttr:
    return location.location if isinstance(location.location, LocationAttr) else UNKNOWN_LOC
