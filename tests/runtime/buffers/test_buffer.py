"""The count of device memory."""

from __future__ import annotations

import gc
import weakref

import pytest

from lazytpu.runtime.buffers.buffer import MEMORY, Buffer


@pytest.fixture(autouse=True)
def quiet():
    gc.collect()
    MEMORY.reset_peak()


def test_live_bytes_follow_buffers():
    start = MEMORY.live
    x, y = Buffer("x", 100), Buffer("y", 50)
    assert MEMORY.live == start + 150
    del x
    assert MEMORY.live == start + 50
    assert MEMORY.peak == start + 150
    assert y.error is None
    assert y.pins == 0
    assert weakref.ref(y)() is y


def test_released_buffer_is_not_counted():
    start = MEMORY.live
    x = Buffer("x", 100)
    x.release()
    assert MEMORY.live == start
    assert x.array is None
    del x
    assert MEMORY.live == start


def test_peak_includes_the_needs_of_a_run():
    x = Buffer("x", 100)
    MEMORY.note_execution(temporaries=40, outputs=130, aliased=100)
    assert MEMORY.peak == MEMORY.live + 70
    MEMORY.note_execution(temporaries=0, outputs=10, aliased=0)
    assert MEMORY.peak == MEMORY.live + 70
    MEMORY.reset_peak()
    assert MEMORY.peak == MEMORY.live
    assert x.nbytes == 100


def test_buffer_has_no_other_attributes():
    with pytest.raises(AttributeError):
        Buffer("x", 1).color = "red"
