"""docs/architecture.md agrees with the code: sizes of files, who imports whom, every rule that a comment cites, where
tests lie."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lazytpu"
PAGE = (ROOT / "docs/architecture.md").read_text()
FILES = re.findall(r"^\| \[`([\w/.]+)`\]\((\S+)\) \| (\d+) \|", PAGE, re.MULTILINE)
ROOMS = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", PAGE[PAGE.index("## Rooms") :], re.MULTILINE)


def section(heading: str) -> list[int]:
    """The lines of each file in the table below a heading."""
    text = PAGE[PAGE.index(f"## {heading}\n") :]
    rows = text[: text.index("\n## ", 1)]
    return [int(lines) for lines in re.findall(r"^\| \[`[^|]*\| (\d+) \|", rows, re.MULTILINE)]


@pytest.mark.parametrize(("name", "target", "lines"), FILES, ids=[name for name, *_ in FILES])
def test_a_file_has_about_the_lines_that_the_page_says(name: str, target: str, lines: str):
    path = (ROOT / "docs" / target).resolve()
    assert path == PACKAGE / name
    real = len(path.read_text().splitlines())
    assert abs(real - int(lines)) <= max(20, real // 5), f"{name} has {real} lines"


def test_the_sums_are_those_of_the_tables():
    """As the first paragraph gives them, about; the files are counted."""
    steady = section("One op, known") + section("One step, known")
    tables = steady, section("One op, unknown"), section("One step, unknown")
    said = re.findall(r"([\d,]+) (?:more )?lines in (\d+) files", " ".join(PAGE.split()))
    assert [int(files) for _, files in said] == [len(lines) for lines in tables]
    assert [int(lines.replace(",", "")) for lines, _ in said] == pytest.approx([sum(t) for t in tables], rel=0.1)


def imports(room: str) -> set[str]:
    """The rooms that the files of a room import, at any depth of their code."""
    names: set[str] = set()
    for path in (PACKAGE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
    rooms = {parts[1] for name in names if (parts := name.split("."))[0] == "lazytpu" and len(parts) > 1}
    return {name for name in rooms - {room} if (PACKAGE / name).is_dir()}


def test_every_room_is_on_the_page():
    assert {name for name, _ in ROOMS} == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


@pytest.mark.parametrize(("room", "allowed"), ROOMS, ids=[name for name, _ in ROOMS])
def test_a_room_imports_what_the_page_says(room: str, allowed: str):
    assert imports(room) == set(re.findall(r"`(\w+)`", allowed))


def test_every_rule_that_a_comment_cites_is_on_the_page():
    cited = {rule for path in PACKAGE.rglob("*.py") for rule in re.findall(r"\((R\d+)\)", path.read_text())}
    assert cited
    assert cited <= set(re.findall(r"^### (R\d+): ", PAGE, re.MULTILINE))


def test_tests_lie_where_the_code_lies():
    """A test named as a file of a room's folder is in the folder of that name."""
    misplaced = {}
    for room in (path.parent for path in PACKAGE.glob("*/__init__.py")):
        tests = ROOT / "tests" / room.name
        for path in tests.rglob("test_*.py"):
            name = path.name.removeprefix("test_")
            places = {file.parent.relative_to(PACKAGE) for file in room.rglob(name)}
            if places and path.parent.relative_to(ROOT / "tests") not in places:
                misplaced[str(path.relative_to(ROOT))] = sorted(map(str, places))
    assert misplaced == {}
