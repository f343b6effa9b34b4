"""A record taken apart into its integers and the rest, its skeleton; and put together again from other integers.

Traces whose skeletons are equal differ in sizes alone, and what is a number in one may be a form of sizes in all of
them. Strides that follow from the sizes, those of a dense tensor, are no integers of the record: the skeleton has the
order of its dimensions. Of a custom kernel it has the family.

In a trace, a whole tensor and its first part are one skeleton, as a cache is that is sometimes cut to fewer tokens: the
part has the tensor's strides, and all of its sizes are integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from lazytpu.trace.extract import operands
from lazytpu.trace.families import MEMBERS
from lazytpu.trace.trie import Number, Operand, Record
from lazytpu.trace.value import Layout

Skeleton = tuple[Any, ...]
OTHER, SIZE, COUNT = range(3)
"""Kinds of integers: of which nothing is known, sizes of tensors, and numbers of elements that were counted on the
device, which are no form of sizes even where they look like one."""
LEAST = 2
"""The least size that a symbol stands for: what happens to sizes 0 and 1 may be something else, so they are part of the
skeleton."""
COUNTED = {"lazytpu.nonzero.default": "count", "lazytpu.repeat_interleave.counted": "count"}
"Ops with an argument that was counted on the device."


@dataclass(slots=True)
class Integers:
    """The integers of a record or a trace, in order, and the kind of each."""

    values: list[int]
    kinds: list[int]

    def add(self, values: Sequence[int], kind: int = OTHER) -> None:
        self.values.extend(values)
        self.kinds.extend([kind] * len(values))


Layouts = dict[int, Layout]
"Those of the slots of a trace, as far as it is known."


def trace_apart(records: Sequence[Record], into: Integers) -> list[Skeleton]:
    """The skeletons of a trace's records; their integers are added to `into`."""
    layouts, skeletons = Layouts(), list[Skeleton]()
    for record in records:
        layouts.update((slot, layout) for slot, layout, _ in record.admitted)
        skeletons.append(take_apart(record, into, layouts))
        _note_made(record, layouts)
    return skeletons


def trace_together(records: Sequence[Record], integers: Iterator[int]) -> list[Record]:
    """Records of the same skeletons with other integers, in the order of `trace_apart`."""
    old, new, made = Layouts(), Layouts(), list[Record]()
    for record in records:
        old.update((slot, layout) for slot, layout, _ in record.admitted)
        made.append(put_together(record, integers, (old, new)))
        _note_made(record, old)
        _note_made(made[-1], new)
    return made


def with_parts(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """The records of a trace, where what is whole and a part in another trace of its skeleton is a view of all of it.
    Whole operands have no sizes of their own when they are put together again."""
    layouts, made = Layouts(), list[Record]()

    def argument(value: Any, other: Any) -> Any:
        if isinstance(value, list):
            return list(map(argument, cast("list[Any]", value), other))
        if isinstance(value, Operand) and value.view is None and other.view is not None:
            layout = layouts[value.slot]
            return Operand(value.slot, (layout.shape, layout.stride, 0, layout.dtype))
        return value

    for record, other in zip(records, others, strict=True):
        layouts.update((slot, layout) for slot, layout, _ in record.admitted)
        arguments = {name: argument(value, other.arguments[name]) for name, value in record.arguments.items()}
        made.append(replace(record, arguments=arguments))
        _note_made(made[-1], layouts)
    return made


def _note_made(record: Record, layouts: Layouts) -> None:
    layouts.update(zip(record.out_slots, [layout for layout in record.outs if layout is not None], strict=True))
    for name, slots in record.written.items():
        for operand, slot in zip(operands(record.arguments[name]), slots, strict=True):
            layouts[slot] = layouts[operand.slot]


def take_apart(record: Record, into: Integers, layouts: Layouts | None = None) -> Skeleton:
    """The skeleton of a record, hashable; its integers are added to `into`. With the `layouts` of what it reads, first
    parts of these are told from other views."""
    counted, arguments = COUNTED.get(str(record.op)), record.arguments.items()
    return (
        record.op,
        tuple([(slot, layout_apart(layout, into), empty) for slot, layout, empty in record.admitted]),
        tuple([(n, _argument(value, into, layouts, COUNT if n == counted else OTHER)) for n, value in arguments]),
        tuple([None if layout is None else layout_apart(layout, into) for layout in record.outs]),
        record.out_slots,
        tuple(record.written.items()),
        record.rng,
        record.settings,
        record.in_backward,
        record.tuned,
    )


def put_together(record: Record, integers: Iterator[int], layouts: tuple[Layouts, Layouts] | None = None) -> Record:
    """A record of the same skeleton with other integers, in the order of `take_apart`. `layouts` are those of what it
    reads, and the new ones, to which what it admits is added."""
    admitted = tuple([(slot, _new_layout(layout, integers), empty) for slot, layout, empty in record.admitted])
    if layouts is not None:
        layouts[1].update((slot, layout) for slot, layout, _ in admitted)
    return replace(
        record,
        admitted=admitted,
        arguments={name: _new_argument(value, integers, layouts) for name, value in record.arguments.items()},
        outs=tuple([None if layout is None else _new_layout(layout, integers) for layout in record.outs]),
    )


def _argument(value: Any, into: Integers, layouts: Layouts | None, kind: int = OTHER) -> Any:
    if type(value) is int:
        into.add((value,), kind)
        return int
    if isinstance(value, Operand):
        return value.slot, _operand(value, into, layouts)
    if isinstance(value, Number):
        return value
    if isinstance(value, list | tuple):
        return (type(cast("object", value)), *[_argument(v, into, layouts) for v in cast("Sequence[Any]", value)])
    if isinstance(value, float | complex):  # NaN equals itself, and the zeros differ
        return type(value), repr(value)
    if type(value) is str and value in MEMBERS:
        return str, id(MEMBERS[value].family)
    return type(value), value


def _new_argument(value: Any, integers: Iterator[int], layouts: tuple[Layouts, Layouts] | None) -> Any:
    if type(value) is int:
        return next(integers)
    if isinstance(value, Operand):
        return Operand(value.slot, _new_view_of(value, integers, layouts))
    if isinstance(value, list):
        return [_new_argument(v, integers, layouts) for v in cast("list[Any]", value)]
    if isinstance(value, tuple):
        return tuple([_new_argument(v, integers, layouts) for v in cast("tuple[Any, ...]", value)])
    return value


def is_first_part(operand: Operand, layout: Layout) -> bool:
    """Whether an operand is all of a tensor with this layout, or the first elements of some of its dimensions."""
    if operand.view is None:
        return True
    _, stride, offset, dtype = operand.view
    return offset == 0 and dtype == layout.dtype and tuple(stride) == tuple(layout.stride)


def _operand(operand: Operand, into: Integers, layouts: Layouts | None) -> Skeleton | None:
    if layouts is None or not is_first_part(operand, layout := layouts[operand.slot]):
        return None if operand.view is None else _view(operand.view, into)
    size = layout.shape if operand.view is None else tuple(operand.view[0])
    into.add(size, SIZE)
    return tuple([n if n < LEAST else LEAST for n in size])


def _new_view_of(
    operand: Operand, integers: Iterator[int], layouts: tuple[Layouts, Layouts] | None
) -> tuple[Any, ...] | None:
    view, slot = operand.view, operand.slot
    if layouts is None or not is_first_part(operand, layouts[0][slot]):
        return None if view is None else _new_view(view, integers)
    size = tuple([next(integers) for _ in (layouts[0][slot].shape if view is None else view[0])])
    return None if view is None else (size, layouts[1][slot].stride, 0, view[3])


def layout_apart(layout: Layout, into: Integers) -> Skeleton:
    """The skeleton of a layout."""
    return layout.dtype, *strided(layout.shape, layout.stride, into)


def _new_layout(layout: Layout, integers: Iterator[int]) -> Layout:
    return Layout(layout.dtype, *_new_strided(layout.shape, layout.stride, integers))


def _view(view: tuple[Any, ...], into: Integers) -> Skeleton:
    size, stride, offset, dtype = view
    skeleton = strided(tuple(size), tuple(stride), into)
    into.add((offset,))
    return dtype, *skeleton


def _new_view(view: tuple[Any, ...], integers: Iterator[int]) -> tuple[Any, ...]:
    size, stride, _, dtype = view
    return *_new_strided(tuple(size), tuple(stride), integers), next(integers), dtype


def strided(size: tuple[int, ...], stride: tuple[int, ...], into: Integers) -> Skeleton:
    """The skeleton of a size and its strides."""
    into.add(size, SIZE)
    order = dense_order(size, stride)
    if order is None:
        into.add(stride)
    return tuple([n if n < LEAST else LEAST for n in size]), order


def _new_strided(
    size: tuple[int, ...], stride: tuple[int, ...], integers: Iterator[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    order = dense_order(size, stride)
    new = tuple([next(integers) for _ in size])
    return new, tuple([next(integers) for _ in size]) if order is None else dense_strides(new, order)


def dense_order(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...] | None:
    """The dimensions from the largest stride to the smallest, if each stride is the number of elements of those after
    it; else None."""
    order = tuple(sorted(range(len(size)), key=lambda dim: -stride[dim]))
    return order if dense_strides(size, order) == tuple(stride) else None


def dense_strides(size: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor whose dimensions lie in this order, the outermost first."""
    strides, step = [0] * len(size), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(size[dim], 1)
    return tuple(strides)
