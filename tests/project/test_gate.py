"""How programs of tests are compiled, and which tests only `make test-all` runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lazytpu.runtime.cache import programs
from tests import zygote
from tests.compiling import QUICK
from tests.conftest import OPTIMIZED

TESTS = Path(__file__).resolve().parents[1]


def test_programs_are_compiled_quickly() -> None:
    assert programs.OPTIONS == QUICK


def test_rooms_with_the_default_compilation_exist() -> None:
    assert [name for name in OPTIMIZED if not (TESTS / name).exists()] == []


REPORT = """
from lazytpu.runtime.cache import programs

def test_options():
    print("OPTIONS", sorted(programs.OPTIONS))
"""


@pytest.mark.parametrize(
    ("room", "arguments", "quick"),
    [("modes", [], False), ("frontend", [], True), ("frontend", ["--optimized"], False)],
)
def test_room_and_command_line_select_the_effort(tmp_path: Path, room: str, arguments: list[str], quick: bool) -> None:
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / room).mkdir()
    (tmp_path / room / "test_options.py").write_text(REPORT)
    done = zygote.run(["-m", "pytest", "-sq", "--rootdir", str(tmp_path), str(tmp_path / room), *arguments])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "OPTIONS [" in done.stdout
    assert ("OPTIONS []" in done.stdout) is not quick
