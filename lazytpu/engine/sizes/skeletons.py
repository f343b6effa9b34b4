"""A record taken apart into its integers and the rest, its skeleton; and put together again from other integers.

Traces whose skeletons are equal differ in sizes alone, and what is a number in one may be a form of sizes in all of
them. Strides that follow from the sizes, those of a dense tensor, are no integers of the record: the skeleton has the
order of its dimensions. Of a custom kernel it has the family.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

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


def take_apart(record: Record, into: Integers) -> Skeleton:
    """The skeleton of a record, hashable; its integers are added to `into`."""
    counted, arguments = COUNTED.get(str(record.op)), record.arguments.items()
    return (
        record.op,
        tuple([(name, _argument(value, into, COUNT if name == counted else OTHER)) for name, value in arguments]),
        tuple([None if layout is None else layout_apart(layout, into) for layout in record.outs]),
        record.out_slots,
        tuple(record.written.items()),
        tuple([(slot, layout_apart(layout, into), empty) for slot, layout, empty in record.admitted]),
        record.rng,
        record.settings,
        record.in_backward,
        record.tuned,
    )


def put_together(record: Record, integers: Iterator[int]) -> Record:
    """A record of the same skeleton with other integers, in the order of `take_apart`."""
    return replace(
        record,
        arguments={name: _new_argument(value, integers) for name, value in record.arguments.items()},
        outs=tuple([None if layout is None else _new_layout(layout, integers) for layout in record.outs]),
        admitted=tuple([(slot, _new_layout(layout, integers), empty) for slot, layout, empty in record.admitted]),
    )


def _argument(value: Any, into: Integers, kind: int = OTHER) -> Any:
    if type(value) is int:
        into.add((value,), kind)
        return int
    if isinstance(value, Operand):
        return value.slot, None if value.view is None else _view(value.view, into)
    if isinstance(value, Number):
        return value
    if isinstance(value, list | tuple):
        return (type(cast("object", value)), *[_argument(v, into) for v in cast("Sequence[Any]", value)])
    if isinstance(value, float | complex):  # NaN equals itself, and the zeros differ
        return type(value), repr(value)
    if type(value) is str and value in MEMBERS:
        return str, id(MEMBERS[value].family)
    return type(value), value


def _new_argument(value: Any, integers: Iterator[int]) -> Any:
    if type(value) is int:
        return next(integers)
    if isinstance(value, Operand):
        return Operand(value.slot, None if value.view is None else _new_view(value.view, integers))
    if isinstance(value, list):
        return [_new_argument(v, integers) for v in cast("list[Any]", value)]
    if isinstance(value, tuple):
        return tuple([_new_argument(v, integers) for v in cast("tuple[Any, ...]", value)])
    return value


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
