"""A record taken apart into its integers and the rest, its skeleton; and put together again from other integers.

Traces whose skeletons are equal differ in sizes alone, and what is a number in one may be a form of sizes in all of
them. Strides that follow from the sizes, those of a dense tensor, are no integers of the record: the skeleton has the
order of its dimensions. Of a custom kernel it has the family.

In a trace, a whole tensor and a part of it are one skeleton, as a cache is that is sometimes cut to fewer tokens: the
part has the tensor's strides, and all of its sizes are integers. So is the place where a view begins, in each dimension
of its tensor. Strides of dimensions of one element, which torch sets as it likes, are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from lazytpu.ir.symbolic import Size
from lazytpu.trace.extract import operands
from lazytpu.trace.families import MEMBERS
from lazytpu.trace.trie import Number, Operand, Record
from lazytpu.trace.value import Layout

Skeleton = tuple[Any, ...]
OTHER, SIZE, COUNT, BEGIN = range(4)
"""Kinds of integers: of which nothing is known, sizes of tensors, numbers of elements that were counted on the device,
which are no form of sizes even where they look like one, and where views begin."""
LEAST = 2
"""The least size that a symbol stands for: what happens to sizes 0 and 1 may be something else, so they are part of the
skeleton."""
COUNTED = {"lazytpu.nonzero.default": "count", "lazytpu.repeat_interleave.counted": "count"}
"Ops with an argument that was counted on the device."
STRUCTURE = frozenset(
    ("dim", "dims", "dim0", "dim1", "dim2", "dimension", "start_dim", "end_dim", "axis", "axis0", "axis1")
    + ("source", "destination", "dims_self", "dims_other", "unroll_dim", "expand1", "expand2", "expand3", "sumdim")
    + ("groups", "reduction", "mode", "interpolation_mode", "padding_mode", "normalization", "edge_order")
)
"""Arguments of ops whose integers are no sizes but choose what the op does: dimensions, groups, modes. They are part of
the skeleton. (Which integers of a program may be sizes, the ops of the dialect declare, `TensorOp.sized`: an argument
that is missing here has no program of many sizes.)"""


@dataclass(slots=True)
class Integers:
    """The integers of a record or a trace, in order, and the kind of each. With `alike`, sizes 0 and 1 are no part of
    the skeleton."""

    values: list[int]
    kinds: list[int]
    alike: bool = False
    made: list[int] = field(default_factory=list[int])
    "The positions of those that follow from others: of results, but for what is made of numbers alone."

    def add(self, values: Sequence[Any], kind: int = OTHER) -> None:
        self.values.extend(values)
        self.kinds.extend([kind] * len(values))

    def add_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Add the sizes of a tensor. Gives what of them is part of the skeleton."""
        self.add(sizes, SIZE)
        return tuple([LEAST if self.alike or n > LEAST else n for n in sizes])


Layouts = dict[int, Layout]
"Those of the slots of a trace, as far as it is known."
Outs = Callable[[Record, Layouts], Sequence[Layout | None]]
"The layouts of the results of a record, by those of the slots that it reads."


def trace_apart(records: Sequence[Record], into: Integers, ends: list[int] | None = None) -> list[Skeleton]:
    """The skeletons of a trace's records; their integers are added to `into`, and how many these are after each record
    to `ends`."""
    layouts, skeletons = Layouts(), list[Skeleton]()
    for record in records:
        note_given(record, layouts)
        skeletons.append(take_apart(record, into, layouts))
        if ends is not None:
            ends.append(len(into.values))
        note_made(record, layouts)
    return skeletons


def admitted_at(records: Sequence[Record]) -> Iterator[tuple[int, int, int]]:
    """The positions of the sizes of inputs among the integers of a trace, each with its slot and its dimension."""
    ends = list[int]()
    trace_apart(records, Integers([], []), ends)
    for record, at in zip(records, [0, *ends], strict=False):
        for slot, layout, empty in record.admitted:
            if not empty:
                yield from ((at + dim, slot, dim) for dim in range(len(layout.shape)))
            layout_apart(plain(layout), own := Integers([], []))
            at += len(own.values)


def trace_together(records: Sequence[Record], integers: Iterator[int], outs: Outs | None = None) -> list[Record]:
    """Records of the same skeletons with other integers, in the order of `trace_apart`. With `outs`, which has the
    layouts of results, the integers are those of what ops are given alone."""
    old, new, made = Layouts(), Layouts(), list[Record]()
    for record in records:
        note_given(record, old)
        made.append(put_together(record, integers, (old, new), outs))
        note_made(record, old)
        note_made(made[-1], new)
    return made


def with_parts(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """The records of a trace, where what is whole and a part in another trace of its skeleton is a view of all of it.
    Whole operands have no sizes of their own when they are put together again. A record of the other trace may have
    fewer operands, or none where this one has one: what has no counterpart stays as it is."""
    layouts, made = Layouts(), list[Record]()

    def argument(value: Any, other: Any) -> Any:
        if isinstance(value, list):
            values: list[Any] = value
            others = other if isinstance(other, list) else [None] * len(values)
            return list(map(argument, values, others)) if len(others) == len(values) else values
        if isinstance(value, Operand) and value.view is None and getattr(other, "view", None) is not None:
            layout = layouts[value.slot]
            whole = Operand(value.slot, (layout.shape, layout.stride, 0, layout.dtype))
            return whole if is_part(whole, layout) else value  # no element has a place in an empty tensor
        return value

    for record, other in zip(records, others, strict=True):
        note_given(record, layouts)
        arguments = {name: argument(value, other.arguments.get(name)) for name, value in record.arguments.items()}
        made.append(replace(record, arguments=arguments))
        note_made(made[-1], layouts)
    return made


def note_given(record: Record, layouts: Layouts) -> None:
    """Add the layouts of a record's inputs to those of the slots."""
    layouts.update((slot, layout) for slot, layout, _ in record.admitted)


def note_made(record: Record, layouts: Layouts) -> None:
    """Add those of what a record makes or writes."""
    layouts.update(zip(record.out_slots, [layout for layout in record.outs if layout is not None], strict=True))
    for name, slots in record.written.items():
        for operand, slot in zip(operands(record.arguments[name]), slots, strict=True):
            layouts[slot] = layouts[operand.slot]


def take_apart(record: Record, into: Integers, layouts: Layouts | None = None) -> Skeleton:
    """The skeleton of a record, hashable; its integers are added to `into`. Without the `layouts` of what it reads,
    views are as they are."""
    counted, arguments = COUNTED.get(str(record.op)), record.arguments.items()
    read = _as_it_is if layouts is None else plain
    admitted = tuple([(slot, layout_apart(read(layout), into), empty) for slot, layout, empty in record.admitted])
    given = tuple([(n, _named(n, value, into, layouts, COUNT if n == counted else OTHER)) for n, value in arguments])
    start = len(into.values)
    outs = tuple([None if layout is None else layout_apart(read(layout), into) for layout in record.outs])
    if any(operands(value) for value in record.arguments.values()):
        into.made.extend(range(start, len(into.values)))
    return (
        record.op,
        admitted,
        given,
        outs,
        record.out_slots,
        tuple(record.written.items()),
        record.rng,
        record.settings,
        record.in_backward,
        record.tuned,
    )


def put_together(
    record: Record, integers: Iterator[int], layouts: tuple[Layouts, Layouts] | None = None, outs: Outs | None = None
) -> Record:
    """A record of the same skeleton with other integers, in the order of `take_apart`. `layouts` are those of what it
    reads, and the new ones, to which what it admits is added. With `outs` there are no integers of its results."""
    read = _as_it_is if layouts is None else plain
    admitted = tuple([(slot, new_layout(read(layout), integers), empty) for slot, layout, empty in record.admitted])
    if layouts is not None:
        layouts[1].update((slot, layout) for slot, layout, _ in admitted)
    arguments = {
        name: value if name in STRUCTURE else _new_argument(value, integers, layouts)
        for name, value in record.arguments.items()
    }
    if outs is not None:
        assert layouts is not None
        given = replace(record, admitted=admitted, arguments=arguments)
        return replace(given, outs=tuple(outs(given, layouts[1])))
    own = tuple([None if layout is None else new_layout(read(layout), integers) for layout in record.outs])
    return replace(record, admitted=admitted, arguments=arguments, outs=own)


def _named(name: str, value: Any, into: Integers, layouts: Layouts | None, kind: int) -> Any:
    if name not in STRUCTURE:
        return _argument(value, into, layouts, kind)
    return type(value), tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def form_of(value: Any) -> Any:
    """Where there are operands, run-time numbers and integers in an argument."""
    if isinstance(value, list | tuple):
        return tuple([form_of(each) for each in cast("Sequence[Any]", value)])
    return type(value)


def _argument(value: Any, into: Integers, layouts: Layouts | None, kind: int = OTHER) -> Any:
    if type(value) is int or type(value) is Size:
        into.add((value,), kind)
        return int, value < 0  # ops do something else then, as with a diagonal below the main one
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


def is_part(operand: Operand, layout: Layout) -> bool:
    """Whether an operand is all of a tensor with this layout, or some neighbours along each of its dimensions."""
    if operand.view is None:
        return True
    size, stride = operand.view[:2]
    alike = len(stride) == len(layout.stride) and all(map(_steps_alike, size, stride, layout.stride))
    return alike and _has_begins(operand.view, layout)


def _steps_alike(n: int, step: int, other: int) -> bool:
    return n == 1 or step == other


def _has_begins(view: tuple[Any, ...], layout: Layout) -> bool:
    """Whether the place where a view begins is one in each dimension of its tensor."""
    offset, dtype = view[2:]
    return dtype == layout.dtype and 0 not in layout.shape and _offset(_begins(offset, layout), layout) == offset


def _begins(offset: int, layout: Layout) -> list[int]:
    """The places of an element in the dimensions of its tensor, the outermost first."""
    found: list[int] = []
    for dim in layout.memory_order:
        begin, offset = (0, offset) if layout.shape[dim] == 1 else divmod(offset, layout.stride[dim])
        found.append(begin)
    return found


def _offset(begins: Sequence[int], layout: Layout) -> int:
    return sum(begin * layout.stride[dim] for begin, dim in zip(begins, layout.memory_order, strict=True))


def _without_ones(
    size: tuple[int, ...], stride: tuple[int, ...], order: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Strides where dimensions of one element have those that follow from the others: of a dense tensor those of the
    outermost dimensions, or of its memory `order`; else 0."""
    if 1 not in size:
        return stride
    if order is not None:
        dense = dense_strides(size, order)
        return dense if all(map(_steps_alike, size, stride, dense)) and _order(dense) == order else stride
    whole = max([n * step for n, step in zip(size, stride, strict=True) if n != 1], default=1)
    outer = tuple([whole if n == 1 else step for n, step in zip(size, stride, strict=True)])
    if dense_order(size, outer) is not None:
        return outer
    return tuple([0 if n == 1 else step for n, step in zip(size, stride, strict=True)])


def _order(stride: Sequence[int]) -> list[int]:
    return sorted(range(len(stride)), key=lambda dim: -stride[dim])


def _as_it_is(layout: Layout) -> Layout:
    return layout


def plain(layout: Layout) -> Layout:
    """The same array, with strides of dimensions of one element that follow from the others."""
    stride = _without_ones(layout.shape, layout.stride, layout.memory_order)
    return layout if stride == layout.stride else Layout(layout.dtype, layout.shape, stride)


def _operand(operand: Operand, into: Integers, layouts: Layouts | None) -> Skeleton | None:
    if layouts is None:
        return None if operand.view is None else _view(operand.view, into)
    view, layout = operand.view, layouts[operand.slot]
    if not is_part(operand, layout):
        assert view is not None
        size, stride, offset, dtype = tuple(view[0]), tuple(view[1]), view[2], view[3]
        skeleton = strided(size, _without_ones(size, stride), into)
        placed = _has_begins(view, layout)
        into.add(_begins(offset, layout) if placed else (offset,), BEGIN if placed else OTHER)
        return dtype, placed, *skeleton
    size = layout.shape if view is None else tuple(view[0])
    sizes = into.add_sizes(size)
    into.add([0] * len(size) if view is None else _begins(view[2], layout), BEGIN)
    return sizes


def _new_view_of(
    operand: Operand, integers: Iterator[int], layouts: tuple[Layouts, Layouts] | None
) -> tuple[Any, ...] | None:
    view, slot = operand.view, operand.slot
    if layouts is None:
        return None if view is None else _new_view(view, integers)
    before, after = layouts[0][slot], layouts[1][slot]
    if not is_part(operand, before):
        assert view is not None
        size, stride, dtype = tuple(view[0]), tuple(view[1]), view[3]
        new = _new_strided(size, _without_ones(size, stride), integers)
        return *new, _new_offset(view, integers, before, after), dtype
    size = tuple([next(integers) for _ in (before.shape if view is None else view[0])])
    if view is None:
        _new_begins(integers, before)
        return None
    return size, after.stride, _offset(_new_begins(integers, before), after), view[3]


def _new_offset(view: tuple[Any, ...], integers: Iterator[int], before: Layout, after: Layout) -> int:
    return _offset(_new_begins(integers, before), after) if _has_begins(view, before) else next(integers)


def _new_begins(integers: Iterator[int], layout: Layout) -> list[int]:
    return [next(integers) for _ in layout.shape]


def layout_apart(layout: Layout, into: Integers) -> Skeleton:
    """The skeleton of a layout."""
    return layout.dtype, *strided(layout.shape, layout.stride, into)


def new_layout(layout: Layout, integers: Iterator[int]) -> Layout:
    """A layout of the same skeleton with other integers."""
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
    sizes, order = into.add_sizes(size), dense_order(size, stride)
    if order is None:
        into.add(stride)
    return sizes, order


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
