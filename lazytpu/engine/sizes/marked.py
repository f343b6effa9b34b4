"""A trace at other sizes than its own, where somebody said which sizes of its inputs will vary.

Nobody has shown how it looks there. Torch says which results its ops have for other inputs; what Python computed of a
size, such as the limits of a view, is guessed. A guess is never a wrong result: forms that are made of it give the
numbers of the trace at its own sizes, and a trace of which they do not give all has other forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from lazytpu.engine.sizes.guessed_views import Unknown, viewed
from lazytpu.engine.sizes.skeletons import LEAST, STRUCTURE, dense_order, dense_strides
from lazytpu.ports import Inference, Ranges
from lazytpu.runtime.padded import PaddedBuffer
from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout
from lazytpu.trace.ways import WAYS

CERTAIN = 5
"The least size that an integer of the trace is taken for: smaller ones may be numbers of dims."


@dataclass(frozen=True)
class Marked:
    """The records of a trace with inputs of which some dims were said to vary: by slot, with the least and the greatest
    size of each, None for no limit."""

    records: Sequence[Record]
    known: Slots
    ranges: Mapping[int, Ranges]
    inference: Inference

    @classmethod
    def of(cls, buffers: Sequence[Any], records: Sequence[Record], inference: Inference) -> Marked | None:
        """What is marked of the inputs of a trace, in these buffers; None if nothing is."""
        marked = {number: b.ranges for number, b in enumerate(buffers) if isinstance(b, PaddedBuffer) and b.ranges}
        if not marked:
            return None
        known = Slots(records)
        ranges: dict[int, Ranges] = {}
        for slot, number in known.inputs.items():
            if number in marked:  # buffers have their dims in memory order
                order = known.layouts[slot].memory_order
                ranges[slot] = {order[dim]: each for dim, each in marked[number].items()}
        return cls(records, known, ranges, inference)

    @cached_property
    def limits(self) -> dict[int, tuple[int, int | None]]:
        """By the sizes that vary, the narrowest limits of each."""
        found: dict[int, tuple[int, int | None]] = {}
        for slot, ranges in self.ranges.items():
            for dim, (low, high) in ranges.items():
                size = self.known.layouts[slot].shape[dim]
                if size < LEAST:  # which may be another kind at other sizes
                    continue
                other, top = found.get(size, (low, high))
                found[size] = max(low, other), min((n for n in (high, top) if n is not None), default=None)
        return found

    def elsewhere(self) -> Iterator[list[Record]]:
        """The records at other sizes of what is marked; none where something cannot be guessed. Equal sizes stay
        equal."""
        if not self.limits:
            return
        for way in WAYS:
            try:
                found = [_Replay({n: at(n) for n in self.limits}, self).run() for at in way]
            except Exception:  # noqa: BLE001  (Unknown, and whatever torch raises where ops cannot have these sizes)
                continue
            yield from found
            return


class _Replay:
    """The records at other `sizes`, by those of the trace."""

    def __init__(self, sizes: Mapping[int, int], marked: Marked) -> None:
        self.sizes, self.marked = sizes, marked
        self.known, self.inference = marked.known, marked.inference
        self.layouts: dict[int, Layout] = {}

    def run(self) -> list[Record]:
        return [self._record(record) for record in self.marked.records]

    def _record(self, record: Record) -> Record:
        admitted = tuple([(slot, self._admit(slot, layout, empty), empty) for slot, layout, empty in record.admitted])
        given = record.arguments.items()
        arguments = {name: value if name in STRUCTURE else self._argument(value) for name, value in given}
        made = replace(record, arguments=arguments, admitted=admitted)
        for name, slots in record.written.items():
            for operand, slot in zip(operands(record.arguments[name]), slots, strict=True):
                self.layouts[slot] = self.layouts[operand.slot]
        if arguments == record.arguments and all(self._is_same(slot) for slot in _read(record)):
            outs = record.outs
        else:
            outs = tuple(self.inference.outs(made, self.layouts))
        present = [layout for layout in outs if layout is not None]
        self.layouts.update(zip(record.out_slots, present, strict=True))
        return replace(made, outs=outs)

    def _is_same(self, slot: int) -> bool:
        return self.layouts[slot].key == self.known.layouts[slot].key

    def _admit(self, slot: int, layout: Layout, empty: bool) -> Layout:
        """The layout of an input, or of memory that holds nothing yet and was made for what varies."""
        varying = self.marked.ranges.get(slot, ())
        sizes = enumerate(layout.shape)
        shape = tuple([self._near(n) if empty else self.sizes.get(n, n) if d in varying else n for d, n in sizes])
        if shape != layout.shape:
            order = dense_order(layout.shape, layout.stride)
            if order is None:
                raise Unknown
            layout = self.inference.layout(layout.dtype, shape, dense_strides(shape, order))
        self.layouts[slot] = layout
        return layout

    def _argument(self, value: Any) -> Any:
        if type(value) is int:
            return self._number(value)
        if isinstance(value, Operand) and value.view is not None:
            own = self.known.layouts[value.slot], self.layouts[value.slot]
            return Operand(value.slot, viewed(value.view, *own, self.sizes))
        if isinstance(value, list | tuple):
            return type(value)([self._argument(v) for v in value])
        return value

    def _number(self, number: int) -> int:
        """An integer of a record: a size that varies, next to one, or a multiple of it."""
        near = self._near(number)
        multiples = [(n, after) for n, after in self.sizes.items() if n >= CERTAIN and number and number % n == 0]
        return near if near != number or not multiples else number // multiples[0][0] * multiples[0][1]

    def _near(self, number: int) -> int:
        """A size that varies, or is next to one that does."""
        closest = min(self.sizes, key=lambda size: abs(number - size))
        certain = closest >= CERTAIN and abs(number - closest) <= 1
        return number - closest + self.sizes[closest] if certain else number


def _read(record: Record) -> Iterator[int]:
    for value in record.arguments.values():
        yield from (operand.slot for operand in operands(value))
