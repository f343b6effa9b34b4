"""Source lines as locations."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from xdsl.dialects.builtin import UNKNOWN_LOC, CallSiteLoc, LocationAttr, NameLoc, NoneAttr, StringAttr

from lazytpu.ir.location import describe, location_of


@dataclass(frozen=True)
class Line:
    file: str
    line: int
    backward: bool = False
    module: str = ""


@pytest.mark.parametrize(
    ("line", "text", "described"),
    [
        (None, "loc(unknown)", None),
        (Line("train.py", 41), 'loc("train.py":41:0)', "train.py:41"),
        (Line("train.py", 41, backward=True), 'loc("backward"("train.py":41:0))', "train.py:41 (backward)"),
    ],
)
def test_lines(line: Line | None, text: str, described: str | None):
    location = location_of(line)
    assert str(location) == text
    assert describe(location) == described


@pytest.mark.parametrize(
    ("location", "described"),
    [
        (NameLoc(StringAttr("input 3"), NoneAttr()), "input 3"),
        (NameLoc(StringAttr("input 3"), UNKNOWN_LOC), "input 3"),
        (CallSiteLoc(UNKNOWN_LOC, UNKNOWN_LOC), None),
    ],
)
def test_other_locations(location: LocationAttr, described: str | None):
    assert describe(location) == described


def test_equal_lines_are_one_attribute():
    assert location_of(Line("a.py", 1)) is location_of(Line("a.py", 1))
    assert location_of(Line("a.py", 1)) != location_of(Line("a.py", 1, backward=True))
