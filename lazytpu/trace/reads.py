"""Host reads of pending values: which part of a trace runs for one, and what stays pending.

- When the step is over that the value belongs to, all of it runs: exactly the program that would run without the read.
- Else what the value depends on runs, and what an earlier read left pending, so that nothing is pending for ever and a
  loop that reads once an iteration comes to meet the same states again.
- All of it runs when a backward pass would be left pending. What the forward pass keeps for it would be results of one
  program and inputs of the next, and two passes of one graph, as `gradcheck` compares them, would not round alike.

A record without results checks values, and runs with the next read, whatever that reads. The rest becomes a trace of
its own, on which recording goes on. What constants alone decide takes no part of the trace (see constants.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lazytpu.trace.extract import Extracted, Slots, closure, extract
from lazytpu.trace.trie import State
from lazytpu.trace.value import EMPTY, Layout, Value


@dataclass(frozen=True, slots=True)
class Split:
    """A trace taken apart: `first` runs, `rest` stays pending.

    `made` are the inputs of the rest that `first` makes: the place among the rest's inputs, the slot in `first`, and
    the layout. `shared` are the inputs of the whole trace, by number, that both parts take.
    """

    first: Extracted
    rest: Extracted
    made: tuple[tuple[int, int, Layout], ...]
    shared: tuple[int, ...]


def split(state: State, slot: int, left: int, boundary: int) -> Split | None:
    """How a read of `slot` takes the trace that is at `state` apart; None when all of it runs.

    The first `left` records are what an earlier read left; the first `boundary` are of steps that are over.
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
        if any(record.in_backward for i, record in enumerate(records) if i not in chosen):
            return None
    others = [i for i in range(len(records)) if i not in chosen]
    if not others:
        return None
    if max(chosen) < len(chosen):
        first = _whole(_ancestor(state, len(chosen)), known)
    else:
        first = extract(records, sorted(chosen), known)
    rest = extract(records, others, known)
    made = [
        (place, first.slots[old], known.layouts[old])
        for place, (old, given) in enumerate(zip(rest.inputs, rest.given, strict=True))
        if given is None
    ]
    both = set(first.given) & set(rest.given)
    return Split(first, rest, tuple(made), tuple([i for i in range(state.inputs) if i in both]))


def _ancestor(state: State, depth: int) -> State:
    while state.depth > depth:
        assert state.parent is not None
        state = state.parent
    return state


def _whole(state: State, known: Slots) -> Extracted:
    """The trace up to `state` as a part: nothing is numbered anew, and its programs are those of cuts there."""
    slots = range(state.slots)
    inputs = tuple([slot for slot, number in known.inputs.items() if number < state.inputs])
    return Extracted(
        state,
        tuple(slots),
        dict(zip(slots, slots, strict=True)),
        inputs,
        tuple(range(state.inputs)),
        tuple(range(state.numbers)),
    )


class Held:
    """Stands in a trace for the reference to a value that nothing else holds, but which the rest needs."""

    __slots__ = ("value",)

    def __init__(self, value: Value):
        self.value = value

    def __call__(self) -> Value:
        return self.value


def relabel(values: Sequence[Callable[[], Value | None]], old: int, new: int) -> None:
    """Give the values of trace `old` that are alive the epoch `new`, and their places in `values` as slots.

    One that another thread uses, too, may have a slot of that thread's by now, and keeps it.
    """
    for slot, reference in enumerate(values):
        value = reference()
        if value is not None and value.epoch == old:
            value.epoch = new
            value.slot = slot


@dataclass(frozen=True, slots=True)
class Rest:
    """What a read leaves pending: how it took the trace apart, the rest's input buffers, which only a cut changes, and
    the values among the rest's inputs that the first part makes."""

    parts: Split
    buffers: list[Any]
    made: list[Value]

    def fill(self) -> None:
        """Give the rest the inputs that the first part has made. One for which it failed has no buffer."""
        for (index, _, _), value in zip(self.parts.made, self.made, strict=True):
            self.buffers[index] = buffer = value.buffer
            if buffer is not None and buffer is not EMPTY:  # EMPTY: a failed part left it what it was before
                buffer.pins += 1
