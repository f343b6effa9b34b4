"""Extraction: a subset of a trace's records as a trace of its own. Used for host reads, for the records that they leave
pending, and for single records.

An extracted trace is renumbered from 0, and depends on structure alone, or also on the lines of the script. So it is
planned once per state. Equal parts of different traces share one state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from weakref import WeakValueDictionary

from lazytpu.trace.trie import Number, Operand, Record, State
from lazytpu.trace.value import Layout


@dataclass(frozen=True, slots=True)
class Extracted:
    """A subset of a trace as a trace of its own.

    - `state`: the end of its own chain of states.
    - `origins`: for each of its slots, the slot in the original trace; `slots` is the inverse.
    - `inputs`: for each of its input buffers, the slot in the original trace.
    - `sources`: for each input, its index among the original inputs; None if a record outside the subset computes it.
    - `numbers`: for each run-time number, its index among the original numbers.
    """

    state: State
    origins: tuple[int, ...]
    slots: dict[int, int]
    inputs: tuple[int, ...]
    sources: tuple[int | None, ...]
    numbers: tuple[int, ...]


class Slots:
    """The slots of a trace, derived from its records.

    - `layouts`: the layout of each slot. `empty`: the slots of memory that nothing has written.
    - `inputs`: the index of each input slot. `makers`: the index of the record that computes each other slot.
    """

    def __init__(self, records: Sequence[Record]):
        self.layouts: dict[int, Layout] = {}
        self.empty: set[int] = set()
        self.inputs: dict[int, int] = {}
        self.makers: dict[int, int] = {}
        for index, record in enumerate(records):
            for slot, layout, empty in record.admitted:
                self.admit(slot, layout, None if empty else len(self.inputs))
            for slot, layout in made(record, self.layouts):
                self.layouts[slot] = layout
                self.makers[slot] = index

    def admit(self, slot: int, layout: Layout, index: int | None) -> None:
        """Add a slot that no record computes: the input with this index, or empty memory (None)."""
        self.layouts[slot] = layout
        if index is None:
            self.empty.add(slot)
        else:
            self.inputs[slot] = index


def made(record: Record, layouts: Mapping[int, Layout]) -> Iterator[tuple[int, Layout]]:
    """Yield the slots that a record creates or overwrites, with their layouts; `layouts` has those that it reads."""
    yield from zip(record.out_slots, [layout for layout in record.outs if layout is not None], strict=True)
    for name, slots in record.written.items():
        for operand, slot in zip(operands(record.arguments[name]), slots, strict=True):
            yield slot, layouts[operand.slot]


def operands(argument: Any) -> Iterator[Operand]:
    """Yield the operands in a record's argument."""
    values = cast("list[Any]", argument) if isinstance(argument, list) else [argument]
    for value in values:
        if isinstance(value, Operand):
            yield value


def closure(records: Sequence[Record], chosen: set[int], known: Slots) -> set[int]:
    """Return `chosen`, and the indices of all records that these depend on."""
    needed, pending = set(chosen), list(chosen)
    while pending:
        for argument in records[pending.pop()].arguments.values():
            for operand in operands(argument):
                maker = known.makers.get(operand.slot)
                if maker is not None and maker not in needed:
                    needed.add(maker)
                    pending.append(maker)
    return needed


def extract(
    records: Sequence[Record], chosen: Sequence[int], known: Slots | None = None, *, lines: bool = False
) -> Extracted:
    """Extract the records with the indices `chosen`, in ascending order.

    A value that another record computes becomes an input. `known` has the trace's slots, which saves a pass over all
    records when a trace is split record by record. With `lines`, the state is shared only with parts from the same
    source lines, which errors name.
    """
    return _Extraction(Slots(records) if known is None else known, lines).run([records[i] for i in chosen])


# Key of all records of an extracted trace -> the last state of its chain, while it is in use.
_known: WeakValueDictionary[tuple[Any, ...], State] = WeakValueDictionary()


class _Extraction:
    def __init__(self, known: Slots, lines: bool):
        self.known, self.lines = known, lines
        self.origins: list[int] = []
        self.slots: dict[int, int] = {}
        self.inputs: list[int] = []
        self.numbers: list[int] = []
        self.admitted: list[tuple[int, Layout, bool]] = []

    def run(self, chosen: list[Record]) -> Extracted:
        renumbered = [(self._record(record), *self._sizes()) for record in chosen]
        key = tuple([(_key(record), record.line if self.lines else None) for record, *_ in renumbered])
        state = _known.get(key)
        if state is None:
            state = State(None, None, None, 0, 0, 0)
            for record, slots, inputs, numbers in renumbered:
                state = State(state, record, None, slots, inputs, numbers)
            _known[key] = state
        sources = tuple([self.known.inputs.get(slot) for slot in self.inputs])
        return Extracted(state, tuple(self.origins), self.slots, tuple(self.inputs), sources, tuple(self.numbers))

    def _sizes(self) -> tuple[int, int, int]:
        return len(self.origins), len(self.inputs), len(self.numbers)

    def _record(self, record: Record) -> Record:
        """Renumber a record's slots and numbers in the kernel's order: operands, results, writes."""
        self.admitted = []
        arguments = {name: self._argument(value) for name, value in record.arguments.items()}
        rng = None
        if record.rng is not None:
            rng = self._number(record.rng)
            self._number(record.rng + 1)
        return replace(
            record,
            arguments=arguments,
            out_slots=tuple([self._slot(slot) for slot in record.out_slots]),
            written={name: tuple([self._slot(slot) for slot in slots]) for name, slots in record.written.items()},
            admitted=tuple(self.admitted),
            rng=rng,
        )

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Operand):
            slot = self.slots.get(value.slot)
            return Operand(self._admit(value.slot) if slot is None else slot, value.view)
        if isinstance(value, Number):
            return Number(self._number(value.index), value.kind, value.dtype)
        if isinstance(value, list):
            return [self._argument(v) for v in cast("list[Any]", value)]
        return value

    def _admit(self, old: int) -> int:
        """Add a slot for a value from outside the extracted trace: an input, or memory that nothing has written."""
        slot, empty = self._slot(old), old in self.known.empty
        self.admitted.append((slot, self.known.layouts[old], empty))
        if not empty:
            self.inputs.append(old)
        return slot

    def _slot(self, old: int) -> int:
        slot = self.slots[old] = len(self.origins)
        self.origins.append(old)
        return slot

    def _number(self, old: int) -> int:
        self.numbers.append(old)
        return len(self.numbers) - 1


def _key(record: Record) -> tuple[Any, ...]:
    """Return a key that is equal for two records if one program can serve both: all fields except the source line."""
    return (
        record.op,
        tuple([(name, _exact(value)) for name, value in record.arguments.items()]),
        tuple([None if layout is None else layout.key for layout in record.outs]),
        tuple([(slot, layout.key, empty) for slot, layout, empty in record.admitted]),
        record.rng,
        record.settings,
        (record.in_backward, record.in_step, record.in_graph, record.call, record.tuned),
    )


def _exact(value: Any) -> Any:
    """Return a hashable form of an argument that distinguishes types, NaNs, and the signs of zeros (R2)."""
    if isinstance(value, list | tuple):
        return (type(cast("object", value)), *[_exact(v) for v in cast("Sequence[Any]", value)])
    if isinstance(value, int | float | complex):
        return (type(value), repr(value))
    return value
