from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from lazytpu.runtime.buffers import deferred
from lazytpu.runtime.buffers.buffer import MEMORY, Buffer, Origin
from lazytpu.runtime.buffers.deferred import DeferredBuffer, failure_of, is_waiting
from lazytpu.runtime.xla import client


class Launching:
    """Keeps, on a thread, what somebody waits for."""

    def __init__(self, made: Buffer):
        self.made = made

    def wait_for(self, buffer: DeferredBuffer) -> None:
        thread = threading.Thread(target=buffer.keep, args=(self.made,))
        thread.start()
        thread.join()


class Lost:
    def __init__(self) -> None:
        self.times = 0

    def told(self) -> BaseException:
        self.times += 1
        return ValueError("lost")


@pytest.mark.parametrize("asked", ["array", "outcome"])
def test_who_asks_waits(asked: str):
    array = client.to_device(np.ones(3, np.float32))
    outcome, origin = object(), Origin("op", None, None)
    before = MEMORY.live
    made = Buffer(array, 12, origin, outcome)
    waiting: Any = DeferredBuffer(Launching(made))
    waiting.pins += 1
    assert (is_waiting(waiting), waiting.error, waiting.nbytes) == (True, None, 0)
    wanted = {"array": array, "outcome": outcome}
    assert getattr(waiting, asked) is wanted[asked]
    assert type(waiting) is Buffer
    assert (waiting.array, waiting.outcome, waiting.origin, waiting.pins) == (array, outcome, origin, 1)
    assert not is_waiting(waiting)
    assert MEMORY.live == before + 12, "it is counted once"
    del made, waiting
    assert MEMORY.live == before


def test_one_that_failed_says_why():
    made = Buffer(client.to_device(np.ones(3, np.float32)), 12)
    waiting = DeferredBuffer(Launching(made))
    lost = Lost()
    waiting.fail(lost)
    assert not is_waiting(waiting)
    assert (waiting.array, waiting.outcome, waiting.gone(), waiting.taken()) == (None, None, True, False)
    assert failure_of(waiting) is lost
    assert lost.times == 0
    assert str(waiting.error) == "lost"
    assert lost.times == 1


@pytest.mark.parametrize("asked", ["gone", "taken"])
def test_it_may_be_kept_while_it_is_asked(asked: str, monkeypatch: pytest.MonkeyPatch):
    """By the thread that launches: it is a plain buffer from one line to the next."""
    made: Any = Buffer(client.to_device(np.ones(3, np.float32)), 12)
    buffer: Any = DeferredBuffer(Launching(made))

    def kept_meanwhile(of: Buffer) -> bool:
        buffer.keep(made)
        return False

    monkeypatch.setattr(deferred, "is_waiting", kept_meanwhile)
    assert not getattr(buffer, asked)()
    assert type(buffer) is Buffer


@pytest.mark.parametrize("asked", ["array", "outcome"])
def test_it_may_be_kept_before_who_asks_begins_to_wait(asked: str):
    array, outcome = client.to_device(np.ones(3, np.float32)), object()
    made = Buffer(array, 12, None, outcome)
    buffer = DeferredBuffer(Launching(made))
    look_up = DeferredBuffer.__dict__[asked].fget
    buffer.keep(made)
    assert look_up(buffer) is {"array": array, "outcome": outcome}[asked]
