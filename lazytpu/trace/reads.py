"""Host reads of pending values: which part of a trace runs for one, and what stays pending.

- When the step is over that the value belongs to, all of it runs: exactly the program that would run without the read.
- Else what the value depends on runs, and what an earlier read left pending, so that nothing is pending for ever and a
  loop that reads once an iteration comes to meet the same states again.
- All of it runs when a backward pass would be left pending. What the forward pass keeps for it would be results of one
  program and inputs of the next, and two passes of one graph, as `gradcheck` compares them, would not round alike.

The rest becomes a trace of its own, on which recording goes on. Records without results, which mark where others are,
go with what they mark: a part has those between its first and its last record, and the rest those up to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lazytpu.trace.extract import Extracted, Slots, closure, closure_of, extract
from lazytpu.trace.trie import Record, State
from lazytpu.trace.value import Layout, Value


@dataclass(frozen=True, slots=True)
class Split:
    """A trace taken apart: `first` runs, `rest` stays pending.

    `made` are the inputs of the rest that `first` makes: the place among the rest's inputs, the slot in `first`, and
    the layout. `shared` are the inputs of the whole trace, by number, that both parts take, and `unused` those that
    neither does, because only a mark named them.
    """

    first: Extracted
    rest: Extracted
    made: tuple[tuple[int, int, Layout], ...]
    shared: tuple[int, ...]
    unused: tuple[int, ...]


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
        chosen = closure(records, slot, known).union(range(left))
        if any(record.in_backward for i, record in enumerate(records) if i not in chosen):
            return None
    others = [i for i in range(len(records)) if i not in chosen and not _is_mark(records[i])]
    if not others:
        return None
    ancestor = _prefix(state, chosen, records)
    if ancestor is None:
        marks = {i for i in range(min(chosen), max(chosen)) if _is_mark(records[i])}
        if not closure_of(records, marks, known) <= chosen | marks:
            return None  # a mark names what does not run
        first = extract(records, sorted(chosen | marks), known)
    else:
        first = _whole(ancestor, known)
    after = range(others[0], len(records))
    rest = extract(records, sorted({*others, *(i for i in after if _is_mark(records[i]))}), known)
    made = [
        (place, first.slots[old], known.layouts[old])
        for place, (old, given) in enumerate(zip(rest.inputs, rest.given, strict=True))
        if given is None
    ]
    taken, kept = set(first.given), set(rest.given)
    shared = [i for i in range(state.inputs) if i in taken and i in kept]
    unused = [i for i in range(state.inputs) if i not in taken and i not in kept]
    return Split(first, rest, tuple(made), tuple(shared), tuple(unused))


def _is_mark(record: Record) -> bool:
    return not record.out_slots and not record.written


def _prefix(state: State, chosen: set[int], records: Sequence[Record]) -> State | None:
    """The state of the trace after the records `chosen`, if they are its first, marks aside."""
    depth = max(chosen) + 1
    if any(i not in chosen and not _is_mark(records[i]) for i in range(depth)):
        return None
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
