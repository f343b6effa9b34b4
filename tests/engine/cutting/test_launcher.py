from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lazytpu.engine.cutting.launcher import MOST, PATIENCE, Launcher
from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.buffers.deferred import DeferredBuffer


class Cut:
    def __init__(self, run: Callable[[], object], awaited: bool = True, deferred: DeferredBuffer | None = None):
        self.run_ = run
        self.awaited = awaited
        self.deferred = deferred

    def run(self) -> None:
        self.run_()

    def inputs(self) -> list[Any]:
        return []

    def is_awaited(self) -> bool:
        return self.awaited

    def makes(self, buffer: DeferredBuffer) -> bool:
        return buffer is self.deferred

    def launch_ahead(self, buffer: DeferredBuffer, before: Callable[[DeferredBuffer], None]) -> None:
        buffer.keep(Buffer(None, 0))


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    assert launcher.close(time.monotonic() + 30)


def test_cuts_are_launched_in_order(launcher: Launcher):
    launched: list[int] = []
    for i in range(20):
        launcher.make_room()
        launcher.put(Cut(lambda i=i: launched.append(i)))
    launcher.drain()
    assert launched == list(range(20))
    assert not launcher.is_busy


def test_full_queue_blocks_the_next_cut(launcher: Launcher):
    go_on = threading.Event()
    for _ in range(MOST):
        launcher.make_room()
        launcher.put(Cut(go_on.wait))
    waiting = threading.Thread(target=launcher.make_room)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    launcher.drain(0.01)
    assert launcher.is_busy, "a drain with a time limit returns"
    go_on.set()
    waiting.join(30)
    assert not waiting.is_alive()
    launcher.drain()


def test_cuts_nobody_awaits_do_not_block(launcher: Launcher):
    """Other ranks may reach the collective only after later calls of this script, so recording must go on."""
    go_on = threading.Event()
    for _ in range(2 * MOST):
        launcher.make_room()
        launcher.put(Cut(go_on.wait, awaited=False))
    go_on.set()
    launcher.drain()


def test_value_is_launched_ahead_while_the_launcher_waits_for_peers(launcher: Launcher):
    working, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        assert working.wait(30)
        with launcher.away():
            assert go_on.wait(30)

    buffer = DeferredBuffer(launcher)
    launcher.put(Cut(wait))
    launcher.put(Cut(lambda: None, deferred=buffer))
    reading = threading.Thread(target=launcher.wait_for, args=(buffer,))
    reading.start()
    reading.join(3 * PATIENCE)
    assert reading.is_alive(), "the current launch may donate memory that this launch reads"
    working.set()
    reading.join(30)
    assert type(buffer) is Buffer
    go_on.set()
    launcher.drain()


def test_closed_launcher_drops_waiting_cuts():
    launcher, go_on, launched = Launcher(), threading.Event(), list[str]()
    began = threading.Event()
    launcher.put(Cut(lambda: (began.set(), go_on.wait(), launched.append("first"))))
    launcher.put(Cut(lambda: launched.append("second")))
    assert began.wait(30)
    assert not launcher.close(time.monotonic())
    go_on.set()
    assert launcher.close(time.monotonic() + 30)
    assert launched == ["first"]
    launcher.drain()
    with pytest.raises(RuntimeError, match="was not launched"):
        _ = DeferredBuffer(launcher).array


def test_unused_launcher_closes_at_once():
    assert Launcher().close(time.monotonic())
