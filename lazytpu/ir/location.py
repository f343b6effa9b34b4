"""The user's source lines on ops: `loc("train.py":41:0)`, and `loc("backward"("train.py":41:0))` for gradients."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from xdsl.dialects.builtin import UNKNOWN_LOC, FileLineColLoc, IntAttr, LocationAttr, NameLoc, StringAttr

BACKWARD = "backward"


class SourceLine(Protocol):
    """A line of the user's script."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def backward(self) -> bool: ...


def location_of(line: SourceLine | None) -> LocationAttr:
    """The location attribute of a source line; unknown for None."""
    return UNKNOWN_LOC if line is None else place(line.file, line.line, line.backward)


@lru_cache(maxsize=4096)
def place(file: str, line: int, backward: bool) -> LocationAttr:
    """The location attribute of a line of a file."""
    location = FileLineColLoc(StringAttr(file), IntAttr(line), IntAttr(0))
    return NameLoc(StringAttr(BACKWARD), location) if backward else location


def is_backward(location: LocationAttr) -> bool:
    """Whether the op was recorded by a backward pass."""
    return isinstance(location, NameLoc) and location.desc.data == BACKWARD


def describe(location: LocationAttr) -> str | None:
    """A location for people to read, "train.py:41 (backward)"; None when it is unknown."""
    match location:
        case FileLineColLoc():
            return f"{location.filename.data}:{location.line.data}"
        case NameLoc():
            inner = location.location
            within = describe(inner) if isinstance(inner, LocationAttr) else None
            return f"{within} ({location.desc.data})" if within else location.desc.data
        case _:
            return None
