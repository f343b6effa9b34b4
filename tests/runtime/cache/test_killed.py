"""Killed processes leave no half-written entry, no lock, and no file that stays forever."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests import zygote

PROGRAM = Path(__file__).with_name("killing.py")


def run(what: str, folder: Path) -> dict[str, int]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = zygote.run(["-W", "error", str(PROGRAM), what, str(folder)], env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_killed_in_the_middle_of_a_write_thirty_times_leaves_no_damage(tmp_path: Path):
    counts = run("writing", tmp_path / "cache")
    assert counts["left"] > 0, "some were killed in the middle of a file"
    assert counts["found"] > 0
    assert counts["rest"] == counts["damaged"] == 0
    assert 0 < counts["size"] <= 4 * 641_000


def test_lock_is_free_when_its_holder_is_killed(tmp_path: Path):
    assert run("locked", tmp_path / "cache") == {"first": True, "taken": True, "gone": True}
