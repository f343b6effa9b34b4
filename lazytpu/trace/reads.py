"""Host reads of pending values: the records that run, and the records that stay pending.

- If the value belongs to a finished step, that whole step runs, with the same program as without the read.
- Otherwise the value's dependencies run, with the records that an earlier read left pending. So no record stays pending
  forever, and a loop that reads once per iteration returns to the same states.
- The whole trace runs if a backward pass would stay pending. Otherwise saved activations would be results of one
  program and inputs of the next. Two passes of one graph, as `gradcheck` compares them, would then round differently.
- Collectives run in the order of their recording, so a collective brings all earlier ones along.

A record without results checks values; it runs with the next read of any value. The remaining records become a trace of
their own, and recording continues there. A read of a constant runs no part of the trace (see constants.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lazytpu.trace.extract import Extracted, Slots, closure, extract
from lazytpu.trace.trie import Record, State
from lazytpu.trace.value import EMPTY, Layout, Value


@dataclass(frozen=True, slots=True)
class Split:
    """A trace split in two: `first` runs, `rest` stays pending.

    `computed` are the inputs of `rest` that `first` computes: (index among the inputs of `rest`, slot in `first`,
    layout). `shared` are the indices of original inputs that both use.
    """

    first: Extracted
    rest: Extracted
    computed: tuple[tuple[int, int, Layout], ...]
    shared: tuple[int, ...]


def split(state: State, slot: int, left: int, boundary: int) -> Split | None:
    """Split the trace at `state` for a read of `slot`; None if all of it runs.

    An earlier read left the first `left` records pending. The first `boundary` records belong to finished steps.
    """
    records = state.records()
    slots = Slots(records)
    maker = slots.makers.get(slot)
    if maker is None:
        return None
    if maker < boundary:
        chosen = set(range(boundary))
    else:
        checks = {i for i, record in enumerate(records) if record.checks}
        chosen = closure(records, {maker} | checks, slots).union(range(left))
        if state.traits.collective:
            chosen = _in_order(records, chosen, slots)
        if any(record.in_backward for i, record in enumerate(records) if i not in chosen):
            return None
    remaining = [i for i in range(len(records)) if i not in chosen]
    if not remaining:
        return None
    prefix = _ancestor(state, len(chosen)) if max(chosen) < len(chosen) else None
    if prefix is not None and prefix.depth == len(chosen):
        first = _whole(prefix, slots)
    else:
        first = extract(records, sorted(chosen), slots, lines=True)
    pending = extract(records, remaining, slots, lines=True)
    computed = [
        (index, first.slots[old], slots.layouts[old])
        for index, (old, source) in enumerate(zip(pending.inputs, pending.sources, strict=True))
        if source is None
    ]
    common = set(first.sources) & set(pending.sources)
    return Split(first, pending, tuple(computed), tuple([i for i in range(state.inputs) if i in common]))


def _in_order(records: Sequence[Record], chosen: set[int], known: Slots) -> set[int]:
    """Return `chosen` with all collectives before the last chosen one, and their dependencies (R8)."""
    collectives = [i for i, record in enumerate(records) if record.collective]
    last = max((i for i in collectives if i in chosen), default=-1)
    return closure(records, chosen.union(i for i in collectives if i < last), known)


def _ancestor(state: State, depth: int) -> State:
    """Return the last state with at most `depth` records; it has fewer if `depth` is within a compiled graph."""
    while state.depth > depth:
        assert state.parent is not None
        state = state.parent
    return state


def _whole(state: State, known: Slots) -> Extracted:
    """Return the trace up to `state` as an extracted trace without renumbering, which shares the programs of cuts at
    that state."""
    slots = range(state.slots)
    inputs = tuple([slot for slot, index in known.inputs.items() if index < state.inputs])
    return Extracted(
        state,
        tuple(slots),
        dict(zip(slots, slots, strict=True)),
        inputs,
        tuple(range(state.inputs)),
        tuple(range(state.numbers)),
    )


class Held:
    """A strong reference, in a trace's list of weak references, to a value that only the pending records need."""

    __slots__ = ("value",)

    def __init__(self, value: Value):
        self.value = value

    def __call__(self) -> Value:
        return self.value


def relabel(values: Sequence[Callable[[], Value | None]], old: int, new: int) -> None:
    """Move the live values of epoch `old` to epoch `new`, with their indices in `values` as slots.

    A value that another thread uses may have a slot of that thread's trace by now, and keeps it.
    """
    for slot, reference in enumerate(values):
        value = reference()
        if value is not None and value.epoch == old:
            value.epoch = new
            value.slot = slot


@dataclass(frozen=True, slots=True)
class Rest:
    """The records that a read leaves pending: the split, their input buffers (changed only by a cut), and their input
    values that the first part computes."""

    parts: Split
    buffers: list[Any]
    computed: list[Value]

    def fill(self) -> None:
        """Enter the inputs that the first part has computed. An input that failed has no buffer."""
        for (index, _, _), value in zip(self.parts.computed, self.computed, strict=True):
            self.buffers[index] = buffer = value.buffer
            if buffer is not None and buffer is not EMPTY:  # EMPTY: the failed part left it unchanged
                buffer.pins += 1
