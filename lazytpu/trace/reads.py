"""Host reads of pending values: which part of a trace runs, and what stays pending.

- If the value belongs to a step that is over, all of that step runs: exactly the program that runs without the read.
- Otherwise the records that the value depends on run, with those that an earlier read left pending. So nothing stays
  pending forever, and a loop that reads once per iteration reaches the same states again.
- The whole trace runs if a backward pass would be left pending. Otherwise the activations saved for it would be results
  of one program and inputs of the next, and two passes of one graph, as `gradcheck` compares them, would round
  differently.

- Collectives run in the order in which they were recorded, so one that a value depends on brings those before it.

A record without results checks values; it runs with the next read, whatever that reads. The rest becomes a trace of
its own, on which recording continues. The read of a constant runs no part of the trace (see constants.py).
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

    `computed` are the inputs of the rest that `first` computes: the index among the rest's inputs, the slot in `first`,
    and the layout. `shared` are the indices of the inputs of the whole trace that both parts use.
    """

    first: Extracted
    rest: Extracted
    computed: tuple[tuple[int, int, Layout], ...]
    shared: tuple[int, ...]


def split(state: State, slot: int, left: int, boundary: int) -> Split | None:
    """How a read of `slot` splits the trace that is at `state`; None when all of it runs.

    An earlier read left the first `left` records pending; the first `boundary` records belong to steps that are over.
    """
    records = state.records()
    known = Slots(records)
    maker = known.makers.get(slot)
    if maker is None:
        return None
    if maker < boundary:
        chosen = set(range(boundary))
    else:
        checks = {i for i, record in enumerate(records) if record.checks}
        chosen = closure(records, {maker} | checks, known).union(range(left))
        if state.traits.collective:
            chosen = _in_order(records, chosen, known)
        if any(record.in_backward for i, record in enumerate(records) if i not in chosen):
            return None
    others = [i for i in range(len(records)) if i not in chosen]
    if not others:
        return None
    before = _ancestor(state, len(chosen)) if max(chosen) < len(chosen) else None
    if before is not None and before.depth == len(chosen):
        first = _whole(before, known)
    else:
        first = extract(records, sorted(chosen), known)
    rest = extract(records, others, known)
    computed = [
        (index, first.slots[old], known.layouts[old])
        for index, (old, source) in enumerate(zip(rest.inputs, rest.sources, strict=True))
        if source is None
    ]
    both = set(first.sources) & set(rest.sources)
    return Split(first, rest, tuple(computed), tuple([i for i in range(state.inputs) if i in both]))


def _in_order(records: Sequence[Record], chosen: set[int], known: Slots) -> set[int]:
    """`chosen`, and the collectives before the last of them, with what those depend on (R8)."""
    collectives = [i for i, record in enumerate(records) if record.collective]
    last = max((i for i in collectives if i in chosen), default=-1)
    return closure(records, chosen.union(i for i in collectives if i < last), known)


def _ancestor(state: State, depth: int) -> State:
    """The last state with at most `depth` records: fewer if that is within a compiled graph."""
    while state.depth > depth:
        assert state.parent is not None
        state = state.parent
    return state


def _whole(state: State, known: Slots) -> Extracted:
    """The trace up to `state` as a part: nothing is renumbered, so it shares the programs of cuts at that state."""
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
    """A strong reference, in a trace's list of weak ones, to a value that only the rest needs."""

    __slots__ = ("value",)

    def __init__(self, value: Value):
        self.value = value

    def __call__(self) -> Value:
        return self.value


def relabel(values: Sequence[Callable[[], Value | None]], old: int, new: int) -> None:
    """Give the live values of trace `old` the epoch `new`, and their indices in `values` as slots.

    A value that another thread uses too may have a slot of that thread's trace by now, and keeps it.
    """
    for slot, reference in enumerate(values):
        value = reference()
        if value is not None and value.epoch == old:
            value.epoch = new
            value.slot = slot


@dataclass(frozen=True, slots=True)
class Rest:
    """What a read leaves pending: how it split the trace, the rest's input buffers, which only a cut changes, and the
    values among the rest's inputs that the first part computes."""

    parts: Split
    buffers: list[Any]
    computed: list[Value]

    def fill(self) -> None:
        """Give the rest the inputs that the first part has computed. If that failed for one, it has no buffer."""
        for (index, _, _), value in zip(self.parts.computed, self.computed, strict=True):
            self.buffers[index] = buffer = value.buffer
            if buffer is not None and buffer is not EMPTY:  # EMPTY: a failed part left it as it was
                buffer.pins += 1
