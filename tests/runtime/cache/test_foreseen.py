"""A run preloads the programs of the last run of its command; a wrong list changes nothing."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lazytpu.runtime.cache import foreseen
from lazytpu.runtime.cache.foreseen import KIND, MAX_PROGRAMS, Foreseen
from lazytpu.runtime.cache.store import CacheWarning, Store
from tests import zygote

ROOT = Path(__file__).resolve().parents[3]
COMMAND = "c" * 64
A, B, C = ("a" * 64, "b" * 64, "d" * 64)


class Loader:
    """A `load` that records its calls, and waits for `go`."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, key: str) -> str | None:
        self.loaded.append(key)
        self.begun.set()
        assert self.go.wait(10)
        if key == C:
            raise OSError("no memory")
        return None if key == B else f"program {key[0]}"


def run(folder: Path, *used: str, load: Loader | None = None) -> Foreseen[str]:
    """The preloader of a process that uses some programs, not begun."""
    preloader = Foreseen[str](Store(folder), COMMAND, load or Loader())
    for key in used:
        preloader.used(key, 100)
    return preloader


def listed(folder: Path) -> list[str] | None:
    entry = Store(folder).get(KIND, COMMAND)
    return None if entry is None else json.loads(entry.payload)


def test_next_run_preloads_the_programs_of_the_last_one(tmp_path: Path):
    run(tmp_path, A, B, A)
    load = Loader()
    ahead = run(tmp_path, load=load)
    ahead.begin()
    assert load.begun.wait(10)
    threading.Timer(0.05, load.go.set).start()
    assert ahead.claim(A) == "program a", "it is waited for while it is being loaded"
    assert ahead.claim(B) is None and ahead.claim(A) is None, "each can be had once, and what does not load never"
    assert ahead.close(time.monotonic() + 10)


def test_program_whose_load_has_not_begun_is_left_to_the_caller(tmp_path: Path):
    run(tmp_path, A, B)
    load = Loader()
    ahead = run(tmp_path, load=load)
    ahead.begin()
    assert load.begun.wait(10)
    assert ahead.claim(B) is None
    load.go.set()
    assert ahead.close(time.monotonic() + 10) and load.loaded == [A]


def test_unexpected_error_is_raised_at_the_claim(tmp_path: Path):
    run(tmp_path, C)
    load = Loader()
    ahead = run(tmp_path, load=load)
    load.go.set()
    ahead.begin()
    assert load.begun.wait(10)
    with pytest.raises(OSError, match="no memory"):
        ahead.claim(C)


def test_compilation_ends_preloading(tmp_path: Path):
    run(tmp_path, A, B)
    load = Loader()
    ahead = run(tmp_path, load=load)
    ahead.begin()
    assert load.begun.wait(10)
    ahead.missed()
    load.go.set()
    assert ahead.close(time.monotonic() + 10) and load.loaded == [A] and ahead.claim(A) is None


def test_another_client_preloads_the_unused_programs(tmp_path: Path):
    run(tmp_path, A, C, B)
    load = Loader()
    load.go.set()
    ahead = run(tmp_path, A, load=load)
    ahead.begin()
    assert load.begun.wait(10)
    ahead.again()
    assert ahead.claim(B) is None
    assert ahead.close(time.monotonic() + 10)
    assert A in load.loaded[:1] and load.loaded.count(A) == 1
    assert ahead.claim(A) is None, "it was of the other client"


def test_exit_waits_for_one_load_with_a_limit(tmp_path: Path):
    run(tmp_path, A, B)
    load = Loader()
    ahead = run(tmp_path, load=load)
    ahead.begin()
    assert load.begun.wait(10)
    assert not ahead.close(time.monotonic() + 0.01)
    load.go.set()
    assert ahead.close(float("inf")) and load.loaded == [A]


def test_list_is_written_only_for_new_programs(tmp_path: Path):
    run(tmp_path, A, B)
    before = Store(tmp_path).get(KIND, COMMAND)
    run(tmp_path, B, A)
    run(tmp_path, A)
    after = Store(tmp_path).get(KIND, COMMAND)
    assert before is not None and after is not None and before.created == after.created
    run(tmp_path, A, C)
    assert listed(tmp_path) == [A, C]
    run(tmp_path, A, C, B)
    assert listed(tmp_path) == [A, C, B]


def test_lists_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run(tmp_path, *(f"{number:064x}" for number in range(2 * MAX_PROGRAMS)))
    assert len(listed(tmp_path) or ()) == MAX_PROGRAMS
    monkeypatch.setattr(foreseen, "MAX_PRELOADED_BYTES", 250)
    run(tmp_path, A, B, C)
    assert listed(tmp_path) == [A, B]


@pytest.mark.parametrize("payload", [b"", b"{}", b"[1]", b"\xff", json.dumps([A] * 17).encode()])
def test_invalid_list_is_removed(tmp_path: Path, payload: bytes):
    Store(tmp_path).put(KIND, COMMAND, payload, {"name": "x"})
    with pytest.warns(CacheWarning, match="list of at most|Expecting|decode"):
        ahead = run(tmp_path)
    ahead.begin()
    assert listed(tmp_path) is None and ahead.claim(A) is None and ahead.close(0)


def test_key_that_names_no_file_is_never_looked_up(tmp_path: Path):
    Store(tmp_path).put(KIND, COMMAND, json.dumps(["../../etc/passwd", A]).encode(), {"name": "x"})
    load = Loader()
    load.go.set()
    ahead = run(tmp_path, load=load)
    ahead.begin()
    ahead.claim(A)
    assert ahead.close(time.monotonic() + 10) and set(load.loaded) <= {A}


SCRIPT = """
import json, sys
import torch
from lazytpu.runtime.cache import programs

programs.spare_core = lambda: True
claimed = []
claim = programs.Foreseen.claim
programs.Foreseen.claim = lambda self, key: [claimed.append(found := claim(self, key)), found][1]
torch.tpu.init()
(ahead,) = programs._AHEAD
if ahead._thread is not None:
    ahead._thread.join()
x = torch.arange(float(sys.argv[1])).to("tpu")
print(json.dumps([(x * 3 + 1).sum().item(), [found is not None for found in claimed]]))
"""


def test_process_uses_preloaded_programs(empty_cache: Path, tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}

    def once(size: str) -> Any:
        done = zygote.run([str(script), size], env=environment, check=True)
        assert done.stderr == ""
        return json.loads(done.stdout)

    (value, first), again, other_arguments = once("4"), once("4"), once("5")
    assert value == 22 and not any(first)
    assert again == [22, [True]]
    assert other_arguments[0] == 35 and not any(other_arguments[1]), "other arguments are another command"
    assert sorted(entry.about["name"] for entry in Store(empty_cache).entries(KIND)) == ["train.py"] * 2
    for entry in Store(empty_cache).entries("program"):  # the list names a program that is damaged
        path = empty_cache / "entries" / f"{entry.key}.program"
        path.write_bytes(path.read_bytes()[:-1])
    done = zygote.run([str(script), "4"], env={**environment, "PYTHONWARNINGS": "default"}, check=True)
    value, claimed = json.loads(done.stdout)
    assert value == 22 and not any(claimed) and "CacheWarning" in done.stderr
