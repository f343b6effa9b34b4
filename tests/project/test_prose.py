"""The docstrings, comments, error messages, pages and local names of each room keep the limits of CONTRIBUTING.md."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.project import prose

TOPS = ("lazytpu", "tools", "tests")
FILES = [path for top in TOPS for path in (prose.ROOT / top).glob("*/*.py")]
ROOMS = sorted({"docs", *TOPS, *(path.parent.relative_to(prose.ROOT).as_posix() for path in FILES)})
rooms = cache(prose.rooms)

SAMPLE = [
    '"""Return what is pending."""  # users are told once',
    "def cut(what: str, more: int = 0):",
    '    label = "what is no prose"',
    "    for each, (rest, size) in pairs:",
    "        other: int = 0",
    "    raise ValueError(",
    '        f"{what} differs from what was recorded"',
    "    )",
    "class Trace:",
    "    known = 0",
]
PAGE = ["# What is a cut?", "It runs what is pending.", "```python", "# what is no prose", "```"]


@pytest.mark.parametrize("name", ROOMS)
def test_prose_of_a_room_keeps_the_limits(name: str) -> None:
    """`python -m tests.project.prose ROOM` prints all marks of a room."""
    exceeded = rooms()[name].exceeded()
    assert not exceeded, "\n".join(exceeded)


def test_marks_have_kind_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    room = prose.Room()
    for name, lines in (("cut.py", SAMPLE), ("cut.md", PAGE)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        room.add(tmp_path / name)
    assert [(kind, *text.split(": ", 1)) for kind, text in room.marks] == [
        (prose.CLAUSE, "cut.py:1", '"""Return what is pending."""'),
        (prose.PASSIVE, "cut.py:1", "# users are told once"),
        (prose.CLAUSE, "cut.py:7", '"{what} differs from what was recorded"'),
        (prose.LOCAL, "cut.py:5", "other"),
        (prose.LOCAL, "cut.py:4", "each"),
        (prose.LOCAL, "cut.py:4", "rest"),
        (prose.CLAUSE, "cut.md:2", "It runs what is pending."),
    ]
    assert (room.words, room.names) == (25, 5)
    assert len(room.exceeded()) == len(prose.LIMITS) + len(room.marks)
