"""Measure the prose of a room: free relative clauses, reporting passives and vague locals.

`python -m tests.project.prose ROOM ...` prints the figures of rooms such as `tests/engine`, and all marks with file and
line. Regular expressions find strings, comments and assignments, since parsing 1,400 files would take 8 seconds.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLAUSE, PASSIVE, LOCAL = "free relative clauses", "reporting passives", "vague locals"
LIMITS = {CLAUSE: 1 / 1000, PASSIVE: 0.05 / 1000, LOCAL: 1.5 / 100}  # of all words, of all local names
MARKS = {
    CLAUSE: re.compile(r"(?<![{`])\b[Ww]hat\b(?![^.?!]*\?)"),  # but no parameter, and not in a question
    PASSIVE: re.compile(r"\b(?:is|are|was|were|be|been)\s(?:told|asked|said)\b"),
}
VAGUE = set(
    "alike apart both each few found given held here known left made more one other others own part parts rest some "
    "there told way ways whole".split()
)
QUOTED = re.compile(r'"""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|#[^\n]*', re.DOTALL)
RAISE = re.compile(r"^([ \t]*)raise\b.*(?:\n\1(?:[ \t]+\S|[)\]}]).*)*", re.MULTILINE)
STATEMENT = re.compile(r"^(?:[ \t]*(?:async )?(def|class)\b|[^\s)\]}$])", re.MULTILINE)  # also at the top level
TARGETS = (
    re.compile(r"^[ \t]++((?:[(*]*+\w++[),]*+ ?)++)(?:: (?!.*,$)[^=\n]++)? ?[-+*/|&]?= ", re.MULTILINE),
    re.compile(r"\bfor ([\w, *()\n]+?) in\b"),
    re.compile(r"^[ \t]++with\b.*? as (\w+)", re.MULTILINE),
    re.compile(r"\b(\w++) :="),
)


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the position and text of the docstrings, comments and error messages of Python source."""
    raises = [match.span() for match in RAISE.finditer(source)]
    for match in QUOTED.finditer(source):
        start, text = match.start(), match[0]
        before = source[max(0, start - 200) : start].rstrip(" \t")
        is_statement = before[-1:] in ("", "\n") and before.rstrip()[-1:] not in tuple("([{,=+%|")
        if text[0] == "#" or is_statement or (" " in text and any(a < start < b for a, b in raises)):
            yield start, text


def markdown(source: str) -> Iterator[tuple[int, str]]:
    """Yield the position and text of the lines of Markdown outside of code blocks."""
    text = re.sub(r"^ *```.*?^ *```", lambda m: re.sub(r"\S", " ", m[0]), source, flags=re.MULTILINE | re.DOTALL)
    yield from ((match.start(), match[0]) for match in re.finditer(r".*\S.*", text))


def local_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the position and name of the variables that functions bind, once for each function."""
    code = QUOTED.sub(lambda match: re.sub(r"[^\n]", "$", match[0]), source)
    statements = list(STATEMENT.finditer(code))
    starts = [match.start() for match in statements]
    seen = set[tuple[int, str]]()
    for match in (match for pattern in TARGETS for match in pattern.finditer(code)):
        function = bisect(starts, match.start()) - 1
        if function >= 0 and statements[function][1] == "def":
            for name in re.findall(r"[^\W\d]\w*", match[1]):
                if (function, name) not in seen:
                    yield match.start(1), name
                seen.add((function, name))


@dataclass
class Room:
    """The counts and marks of some files. A mark is a kind and "file:line: text"."""

    words: int = 0
    names: int = 0
    marks: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def add(self, path: Path) -> None:
        """Count the prose of a file, and the local names of a Python file."""
        source, is_python = path.read_text(encoding="utf-8"), path.suffix == ".py"

        def mark(kind: str, position: int, text: str) -> None:
            place = f"{path.relative_to(ROOT)}:{source.count(chr(10), 0, position) + 1}"
            self.marks.append((kind, f"{place}: {' '.join(text.split())}"))

        for position, text in prose(source) if is_python else markdown(source):
            self.words += len(text.split())
            for kind, pattern in MARKS.items():
                for match in pattern.finditer(text):
                    mark(kind, position + match.start(), text[max(0, match.start() - 40) : match.end() + 40])
        for position, name in local_names(source) if is_python else ():
            self.names += 1
            if name in VAGUE:
                mark(LOCAL, position, name)

    def exceeded(self) -> list[str]:
        """Return the marks of each kind that is above its limit, after a line that names it."""
        lines = list[str]()
        for kind, limit in LIMITS.items():
            marks = [text for mark_kind, text in self.marks if mark_kind == kind]
            allowed = limit * (self.names if kind == LOCAL else self.words)
            if len(marks) > allowed:
                lines += [f"{len(marks)} {kind}, {allowed:.1f} allowed:", *marks]
        return lines


def rooms() -> dict[str, Room]:
    """Measure each folder of lazytpu/, tools/ and tests/, the files beside these folders, and docs/."""
    measured: dict[str, Room] = {}
    for pattern in ("lazytpu/**/*.py", "tools/**/*.py", "tests/**/*.py", "docs/*.md"):
        for path in sorted(ROOT.glob(pattern)):
            room = "/".join(path.relative_to(ROOT).parent.parts[:2])
            measured.setdefault(room, Room()).add(path)
    return measured


if __name__ == "__main__":
    for name, room in rooms().items():
        if name in sys.argv[1:]:
            figures = f"{name}: {room.words:,} words, {room.names:,} local names"
            print(figures, *[f"{kind}: {text}" for kind, text in room.marks], sep="\n  ")
