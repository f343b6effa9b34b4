"""The values that a record is the first one of its trace to use."""

from __future__ import annotations

from lazytpu.frontend.recording.not_recorded import cut_first
from lazytpu.trace.cuts import THREAD
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import State
from lazytpu.trace.value import EMPTY, Layout


def admitted(r: Recorder, parent: State) -> tuple[tuple[int, Layout, bool], ...]:
    """Return the slots assigned since the state `parent`, each with its layout and whether its memory is empty.

    Raises NotRecorded when a cut of another thread has meanwhile computed a value that was empty when it was admitted:
    the trace has no buffer for it.
    """
    described = tuple([_described(r, slot) for slot in range(parent.slots, r.slots)])
    if sum(not empty for _, _, empty in described) != len(r.buffers) - parent.inputs:
        raise cut_first(r, THREAD)
    return described


def _described(r: Recorder, slot: int) -> tuple[int, Layout, bool]:
    value = r.values[slot]()
    assert value is not None
    return slot, value.layout, value.buffer is EMPTY
