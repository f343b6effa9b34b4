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
    """Keeps the awaited buffer on a thread."""

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
def test_read_waits_for_the_launch(asked: str):
    array = client.to_device(np.ones(3, np.float32))
    outcome, origin = object(), Origin("op", None, None)
    before = MEMORY.live
    result = Buffer(array, 12, origin, outcome)
    deferred: Any = DeferredBuffer(Launching(result))
    deferred.pins += 1
    assert (is_waiting(deferred), deferred.error, deferred.nbytes) == (True, None, 0)
    wanted = {"array": array, "outcome": outcome}
    assert getattr(deferred, asked) is wanted[asked]
    assert type(deferred) is Buffer
    assert (deferred.array, deferred.outcome, deferred.origin, deferred.pins) == (array, outcome, origin, 1)
    assert not is_waiting(deferred)
    assert MEMORY.live == before + 12, "it is counted once"
    del result, deferred
    assert MEMORY.live == before


def test_failed_buffer_gives_the_reason():
    result = Buffer(client.to_device(np.ones(3, np.float32)), 12)
    deferred = DeferredBuffer(Launching(result))
    lost = Lost()
    deferred.fail(lost)
    assert not is_waiting(deferred)
    assert (deferred.array, deferred.outcome, deferred.gone(), deferred.taken()) == (None, None, True, False)
    assert failure_of(deferred) is lost
    assert lost.times == 0
    assert str(deferred.error) == "lost"
    assert lost.times == 1


@pytest.mark.parametrize("asked", ["gone", "taken"])
def test_buffer_may_be_kept_during_a_read(asked: str, monkeypatch: pytest.MonkeyPatch):
    """By the launching thread: it may become a plain buffer between two lines."""
    result: Any = Buffer(client.to_device(np.ones(3, np.float32)), 12)
    buffer: Any = DeferredBuffer(Launching(result))

    def kept_meanwhile(of: Buffer) -> bool:
        buffer.keep(result)
        return False

    monkeypatch.setattr(deferred, "is_waiting", kept_meanwhile)
    assert not getattr(buffer, asked)()
    assert type(buffer) is Buffer


@pytest.mark.parametrize("asked", ["array", "outcome"])
def test_buffer_may_be_kept_before_the_wait_begins(asked: str):
    array, outcome = client.to_device(np.ones(3, np.float32)), object()
    result = Buffer(array, 12, None, outcome)
    buffer = DeferredBuffer(Launching(result))
    look_up = DeferredBuffer.__dict__[asked].fget
    buffer.keep(result)
    assert look_up(buffer) is {"array": array, "outcome": outcome}[asked]
