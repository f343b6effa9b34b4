"""Slow compilations run in the helper process, or in this process when there is no helper."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch

import lazytpu
from lazytpu.engine.compiling import handing
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.compiling import elsewhere
from tests import zygote
from tests.runtime.compiling.modules import helpers_of


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Send every compilation to a helper process that belongs to the test."""
    mine = elsewhere._Helpers()
    monkeypatch.setattr(elsewhere, "_helpers", mine)
    monkeypatch.setattr(handing, "LEAST", 0.0)
    with lazytpu.options(compile_after_exit=0):
        yield mine
        mine.leave()


def step(x: torch.Tensor, ops: int = 20) -> torch.Tensor:
    chosen = random.Random(ops)
    for _ in range(ops):
        x = chosen.choice([torch.sin, torch.tanh, torch.cos, torch.sigmoid, torch.neg])(x)
    return x.sum(0)


def until(happened: Callable[[], Any]) -> Any:
    end = time.monotonic() + 60
    while not (value := happened()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return value


@contextmanager
def locked_programs() -> Iterator[list[str]]:
    """Hold the lock of each program sent to the helper, so that its compilation waits. Yields the keys."""
    keys: list[str] = []
    compile = elsewhere.compile
    with ExitStack() as locks:

        def blocked(module: Any, key: str, **options: Any) -> elsewhere.Ticket:
            locks.enter_context(store().locked("program", key))
            keys.append(key)
            return compile(module, key, **options)

        elsewhere.compile = blocked
        try:
            yield keys
        finally:
            elsewhere.compile = compile


class CompiledTicket:
    """A ticket whose program the helper has compiled."""

    def result(self) -> str:
        return "by the helper"


@pytest.mark.parametrize(
    ("seconds", "behind", "by"),
    [(7.9, False, "here"), (8.0, False, "by the helper"), (1.9, True, "here"), (2.0, True, "by the helper")],
)
def test_slow_compilations_go_to_the_helper(monkeypatch: pytest.MonkeyPatch, seconds: float, behind: bool, by: str):
    monkeypatch.setattr(handing, "LEAST", 8.0)
    monkeypatch.setattr(elsewhere, "available", lambda module: True)
    monkeypatch.setattr(elsewhere, "compile", lambda module, key, *, name: CompiledTicket())
    monkeypatch.setattr(handing.programs, "obtain", lambda module, key, *, name: "here")
    tickets: list[Any] = []
    module: Any = None
    got: Any = handing.obtain(module, 64 * "0", seconds, behind=behind, name="step", handed=tickets.append)
    assert got == by and len(tickets) == (by != "here")


def test_step_waits_for_the_program_of_the_helper(all_are_large: Any):
    x = torch.rand(3, 61).to("tpu")
    lazytpu.sync()
    before = lazytpu.metrics()
    got = step(x).cpu()
    after = lazytpu.metrics()
    torch.testing.assert_close(got, step(x.cpu()))
    assert all_are_large.current is not None
    assert (after["compiles"] - before["compiles"], after["stepwise"] - before["stepwise"]) == (1, 0)
    assert after["cache_misses"] - before["cache_misses"] == 1


def test_program_is_compiled_here_after_the_helper_dies(all_are_large: Any):
    x = torch.rand(3, 67).to("tpu")
    lazytpu.sync()
    with lazytpu.options(background_compile=0.001), locked_programs() as keys:
        step(x, 400).tolist()
        until(lambda: all_are_large.tickets)
        (helper,) = until(lambda: helpers_of(os.getpid()))
        os.kill(helper, signal.SIGKILL)
        until(lambda: not all_are_large.tickets)
    assert len(keys) == 1
    with lazytpu.options(background_compile=120):
        torch.testing.assert_close(step(x, 400).cpu(), step(x.cpu(), 400))
    assert all_are_large.losses == 1 and all_are_large.current is None
    assert store().verify() == []


def test_synchronous_modes_compile_in_this_process(all_are_large: Any):
    x = torch.rand(3, 71).to("tpu")
    with lazytpu.mode("lazy"):
        step(x, 5).cpu()
    with lazytpu.options(background_compile=0):
        step(x, 6).cpu()
    assert all_are_large.current is None


END = """
import sys
import torch, lazytpu
from lazytpu.engine.compiling import handing
from lazytpu.runtime.compiling import elsewhere
from tests.engine.compiling.test_handing import locked_programs, step
x = torch.full((3, 7), 0.5).to("tpu")
lazytpu.options.debug = int(sys.argv[1])
(x + 1).sum().item()
handing.LEAST = 0.0
lazytpu.options.background_compile = 0.001 if sys.argv[2] == "first" else 100
holding = locked_programs()
keys = holding.__enter__()  # to the end of the process
y = step(x, 100)
lazytpu.mark_step()
while sys.argv[2] == "first" and not elsewhere._helpers.tickets:
    pass
print(lazytpu.metrics()["cache_misses"], *keys)
"""


def test_compilation_in_progress_is_finished_for_the_next_run(monkeypatch: pytest.MonkeyPatch):
    """The script ends at once and reports that compilation continues; its next run compiles and lowers nothing."""
    monkeypatch.setenv("LAZYTPU_BACKGROUND_COMPILE", "100")
    done = zygote.run(["-c", END, "1", "first"], finalizes=True)
    assert done.returncode == 0, done.stderr
    assert "not compiled yet: " in done.stderr and "goes on for at most 60 s" in done.stderr
    assert "waiting for" not in done.stderr
    key = done.stdout.split()[1]
    until(lambda: store().has("program", key))
    quiet = zygote.run(["-c", END, "0", "second"], finalizes=True)
    assert (quiet.stderr, quiet.stdout.split()) == ("", ["0"])


WOKEN = """
import sys
import torch, lazytpu
from lazytpu import wiring
from lazytpu.engine.compiling.choice import Costs
from tests.engine.compiling.test_handing import step
lazytpu.options.debug = int(sys.argv[1])
engine = wiring.start()
if sys.argv[2] == "first":
    engine.background.costs = lambda prepared: Costs(50.0, 1.0)
    engine.background._behind.acquire()  # as if another program were in compilation
for _ in range(2):
    step(torch.full((3, 7), 0.5).to("tpu"), 30).tolist()
print(lazytpu.metrics()["compiles"])
"""


def test_queued_compilation_is_finished_for_the_next_run(monkeypatch: pytest.MonkeyPatch):
    """The script ends before the whole program of a step that ran twice by its quick program was compiled."""
    monkeypatch.setenv("LAZYTPU_BACKGROUND_COMPILE", "100")
    done = zygote.run(["-c", WOKEN, "1", "first"])
    assert done.returncode == 0 and done.stdout.split() == ["1"], done.stderr
    assert "not compiled yet: " in done.stderr
    until(lambda: [entry.kind for entry in store().entries()].count("program") == 2)
    again = zygote.run(["-c", WOKEN, "0", "second"])
    assert (again.stderr, again.stdout.split()) == ("", ["0"])
