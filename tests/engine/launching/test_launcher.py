from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lazytpu.engine.launching.launcher import MOST, Launcher
from lazytpu.runtime.promised import PromisedBuffer


class Cut:
    def __init__(self, run: Callable[[], object]):
        self.run_ = run

    def run(self) -> None:
        self.run_()


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    assert made.close(time.monotonic() + 30)


def test_cuts_are_launched_in_their_order(launcher: Launcher):
    launched: list[int] = []
    for i in range(20):
        launcher.make_room()
        launcher.put(Cut(lambda i=i: launched.append(i)))
    launcher.drain()
    assert launched == list(range(20))
    assert not launcher.is_busy


def test_no_more_wait_than_there_is_room_for(launcher: Launcher):
    go_on = threading.Event()
    for _ in range(MOST):
        launcher.make_room()
        launcher.put(Cut(go_on.wait))
    waiting = threading.Thread(target=launcher.make_room)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    launcher.drain(0.01)
    assert launcher.is_busy, "after some time nobody waits any more"
    go_on.set()
    waiting.join(30)
    assert not waiting.is_alive()
    launcher.drain()


def test_what_waits_when_it_is_closed_is_not_launched():
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
        _ = PromisedBuffer(launcher).array


def test_one_that_has_launched_nothing_is_closed():
    assert Launcher().close(time.monotonic())
