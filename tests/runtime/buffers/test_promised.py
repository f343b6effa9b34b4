from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from lazytpu.runtime.buffers import promised
from lazytpu.runtime.buffers.buffer import MEMORY, Buffer, Origin
from lazytpu.runtime.buffers.promised import PromisedBuffer, failure_of, is_waiting
from lazytpu.runtime.xla import client


class Launching:
    """Keeps, on a thread, what somebody waits for."""

    def __init__(self, made: Buffer):
        self.made = made

    def wait_for(self, buffer: PromisedBuffer) -> None:
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
    promised: Any = PromisedBuffer(Launching(made))
    promised.pins += 1
    assert (is_waiting(promised), promised.error, promised.nbytes) == (True, None, 0)
    wanted = {"array": array, "outcome": outcome}
    assert getattr(promised, asked) is wanted[asked]
    assert type(promised) is Buffer
    assert (promised.array, promised.outcome, promised.origin, promised.pins) == (array, outcome, origin, 1)
    assert not is_waiting(promised)
    assert MEMORY.live == before + 12, "it is counted once"
    del made, promised
    assert MEMORY.live == before


def test_one_that_failed_says_why():
    made = Buffer(client.to_device(np.ones(3, np.float32)), 12)
    promised = PromisedBuffer(Launching(made))
    lost = Lost()
    promised.fail(lost)
    assert not is_waiting(promised)
    assert (promised.array, promised.outcome, promised.gone(), promised.taken()) == (None, None, True, False)
    assert failure_of(promised) is lost
    assert lost.times == 0
    assert str(promised.error) == "lost"
    assert lost.times == 1


@pytest.mark.parametrize("asked", ["gone", "taken"])
def test_it_may_be_kept_while_it_is_asked(asked: str, monkeypatch: pytest.MonkeyPatch):
    """By the thread that launches: it is a plain buffer from one line to the next."""
    made: Any = Buffer(client.to_device(np.ones(3, np.float32)), 12)
    buffer: Any = PromisedBuffer(Launching(made))

    def kept_meanwhile(of: Buffer) -> bool:
        buffer.keep(made)
        return False

    monkeypatch.setattr(promised, "is_waiting", kept_meanwhile)
    assert not getattr(buffer, asked)()
    assert type(buffer) is Buffer


@pytest.mark.parametrize("asked", ["array", "outcome"])
def test_it_may_be_kept_before_who_asks_begins_to_wait(asked: str):
    array, outcome = client.to_device(np.ones(3, np.float32)), object()
    made = Buffer(array, 12, None, outcome)
    buffer = PromisedBuffer(Launching(made))
    look_up = PromisedBuffer.__dict__[asked].fget
    buffer.keep(made)
    assert look_up(buffer) is {"array": array, "outcome": outcome}[asked]
