"""docs/architecture.md agrees with the code: sizes of files, imports between rooms, rules that comments cite, places of
tests."""

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
    """Return the lines of each file in the table below a heading."""
    text = PAGE[PAGE.index(f"## {heading}\n") :]
    rows = text[: text.index("\n## ", 1)]
    return [int(lines) for lines in re.findall(r"^\| \[`[^|]*\| (\d+) \|", rows, re.MULTILINE)]


@pytest.mark.parametrize(("name", "target", "lines"), FILES, ids=[name for name, *_ in FILES])
def test_page_has_about_the_lines_of_each_file(name: str, target: str, lines: str):
    path = (ROOT / "docs" / target).resolve()
    assert path == PACKAGE / name
    real = len(path.read_text().splitlines())
    assert abs(real - int(lines)) <= max(20, real // 5), f"{name} has {real} lines"


def test_sums_equal_the_tables():
    """The first paragraph has rounded sums of lines, and the exact number of files."""
    steady = section("One op, known") + section("One step, known")
    tables = steady, section("One op, unknown"), section("One step, unknown")
    said = re.findall(r"([\d,]+) (?:more )?lines in (\d+) files", " ".join(PAGE.split()))
    assert [int(files) for _, files in said] == [len(lines) for lines in tables]
    assert [int(lines.replace(",", "")) for lines, _ in said] == pytest.approx([sum(t) for t in tables], rel=0.1)


def imports(room: str) -> set[str]:
    """Return the rooms that the files of a room import, at any depth of their code."""
    names: set[str] = set()
    for path in (PACKAGE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
    rooms = {parts[1] for name in names if (parts := name.split("."))[0] == "lazytpu" and len(parts) > 1}
    return {name for name in rooms - {room} if (PACKAGE / name).is_dir()}


def test_page_names_every_room():
    assert {name for name, _ in ROOMS} == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


@pytest.mark.parametrize(("room", "allowed"), ROOMS, ids=[name for name, _ in ROOMS])
def test_room_imports_only_rooms_of_the_page(room: str, allowed: str):
    assert imports(room) == set(re.findall(r"`(\w+)`", allowed))


def test_page_has_every_rule_that_a_comment_cites():
    cited = {rule for path in PACKAGE.rglob("*.py") for rule in re.findall(r"\((R\d+)\)", path.read_text())}
    assert cited
    assert cited <= set(re.findall(r"^### (R\d+): ", PAGE, re.MULTILINE))


def test_tests_are_in_the_folder_of_their_code():
    """A test with the name of a file in a room's folder is in the folder of the same name."""
    misplaced = {}
    for room in (path.parent for path in PACKAGE.glob("*/__init__.py")):
        tests = ROOT / "tests" / room.name
        for path in tests.rglob("test_*.py"):
            name = path.name.removeprefix("test_")
            places = {file.parent.relative_to(PACKAGE) for file in room.rglob(name)}
            if places and path.parent.relative_to(ROOT / "tests") not in places:
                misplaced[str(path.relative_to(ROOT))] = sorted(map(str, places))
    assert misplaced == {}
