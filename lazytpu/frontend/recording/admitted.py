"""The values that a record is the first of its trace to use."""

from __future__ import annotations

from lazytpu.frontend.recording.not_recorded import cut_first
from lazytpu.trace.cuts import THREAD
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import State
from lazytpu.trace.value import EMPTY, Layout


def admitted(r: Recorder, parent: State) -> tuple[tuple[int, Layout, bool], ...]:
    """The slots that were given out since the state `parent`, each with its layout and whether its memory is empty.

    Raises NotRecorded when a cut of another thread has computed a value since then that was empty as it was admitted:
    then it has no buffer among those of the trace.
    """
    found = tuple([_described(r, slot) for slot in range(parent.slots, r.slots)])
    if sum(not empty for _, _, empty in found) != len(r.buffers) - parent.inputs:
        raise cut_first(r, THREAD)
    return found


def _described(r: Recorder, slot: int) -> tuple[int, Layout, bool]:
    value = r.values[slot]()
    assert value is not None
    return slot, value.layout, value.buffer is EMPTY
