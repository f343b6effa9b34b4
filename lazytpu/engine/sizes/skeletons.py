"""Records split into their integers and their structure (skeleton), and rebuilt from other integers.

Traces of equal structure differ in sizes only; an integer of one may be a size expression for all. Dense strides follow
from sizes, so they are no integers: the structure has the memory order of the dimensions instead. For a custom kernel
the structure has its family.

Within a trace, a full tensor and a slice of it have the same structure: a cache, say, may sometimes be sliced to fewer
tokens. The slice has the tensor's strides; its sizes, and its start in each dimension, are integers. Strides of
dimensions of one element are ignored, since torch sets them arbitrarily.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from lazytpu.engine.sizes.dense import dense_order, dense_strides
from lazytpu.ir.symbolic import MIN_SYMBOL, Size
from lazytpu.trace.extract import operands
from lazytpu.trace.families import MEMBERS
from lazytpu.trace.trie import Number, Operand, Record
from lazytpu.trace.value import Layout

Skeleton = tuple[Any, ...]
OTHER, SIZE, COUNT, BEGIN = range(4)
"""Kinds of integers: unknown meaning, sizes of tensors, counts made on the device, and starts of views. A count is no
expression of sizes even if it equals one."""
COUNTED = {"lazytpu.nonzero.default": "count", "lazytpu.repeat_interleave.counted": "count"}
"""Ops with an argument that was counted on the device, and its name."""
STRUCTURE = frozenset(
    ("dim", "dims", "dim0", "dim1", "dim2", "dimension", "start_dim", "end_dim", "axis", "axis0", "axis1")
    + ("source", "destination", "dims_self", "dims_other", "unroll_dim", "expand1", "expand2", "expand3", "sumdim")
    + ("groups", "reduction", "mode", "interpolation_mode", "padding_mode", "normalization", "edge_order")
)
"""Arguments whose integers are no sizes but select an op's behaviour: dimensions, groups, modes. They belong to the
structure. An argument missing here only prevents programs for many sizes, since ops declare which integers may be sizes
(`TensorOp.sized`)."""


@dataclass(slots=True)
class Integers:
    """The integers of a record or a trace, in order, and the kind of each. With `alike`, sizes 0 and 1 do not enter the
    structure."""

    values: list[int]
    kinds: list[int]
    alike: bool = False
    made: list[int] = field(default_factory=list[int])
    """The positions of derived integers: those in results of ops that have operands."""

    def add(self, values: Sequence[Any], kind: int = OTHER) -> None:
        self.values.extend(values)
        self.kinds.extend([kind] * len(values))

    def add_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Append the sizes of a tensor and return their part of the structure: 0, 1, or `MIN_SYMBOL` for others."""
        self.add(sizes, SIZE)
        return tuple([MIN_SYMBOL if self.alike or n > MIN_SYMBOL else n for n in sizes])


Layouts = dict[int, Layout]
"""The layouts of a trace's slots up to some record."""
Outs = Callable[[Record, Layouts], Sequence[Layout | None]]
"""Returns the layouts of a record's results, given the layouts of the slots it reads."""


def trace_apart(records: Sequence[Record], into: Integers, ends: list[int] | None = None) -> list[Skeleton]:
    """Return the structures of a trace's records. Append the integers to `into`, and their running number after each
    record to `ends`."""
    layouts, skeletons = Layouts(), list[Skeleton]()
    for record in records:
        note_given(record, layouts)
        skeletons.append(take_apart(record, into, layouts))
        if ends is not None:
            ends.append(len(into.values))
        note_made(record, layouts)
    return skeletons


def admitted_at(records: Sequence[Record]) -> Iterator[tuple[int, int, int]]:
    """Yield (position among the trace's integers, slot, dimension) for each size of each input."""
    ends = list[int]()
    trace_apart(records, Integers([], []), ends)
    for record, at in zip(records, [0, *ends], strict=False):
        for slot, layout, empty in record.admitted:
            if not empty:
                yield from ((at + dim, slot, dim) for dim in range(len(layout.shape)))
            layout_apart(plain(layout), layout_integers := Integers([], []))
            at += len(layout_integers.values)


def trace_together(records: Sequence[Record], integers: Iterator[int], outs: Outs | None = None) -> list[Record]:
    """Return records of the same structure with other integers, in the order of `trace_apart`. With `outs`, which
    computes the layouts of results, `integers` has only the integers of arguments."""
    old, new, rebuilt = Layouts(), Layouts(), list[Record]()
    for record in records:
        note_given(record, old)
        rebuilt.append(put_together(record, integers, (old, new), outs))
        note_made(record, old)
        note_made(rebuilt[-1], new)
    return rebuilt


def with_parts(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """Rewrite each full-tensor operand as an explicit full view wherever `others` uses a slice, so that both traces
    have the same structure.

    A full operand has no sizes of its own when it is rebuilt. Operands without a counterpart in `others` are kept.
    """
    layouts, rewritten = Layouts(), list[Record]()

    def argument(value: Any, other: Any) -> Any:
        if isinstance(value, list):
            values: list[Any] = value
            others = other if isinstance(other, list) else [None] * len(values)
            return list(map(argument, values, others)) if len(others) == len(values) else values
        if isinstance(value, Operand) and value.view is None and getattr(other, "view", None) is not None:
            layout = layouts[value.slot]
            full_view = Operand(value.slot, (layout.shape, layout.stride, 0, layout.dtype))
            return full_view if is_part(full_view, layout) else value  # an empty tensor has no indices
        return value

    for record, other in zip(records, others, strict=True):
        note_given(record, layouts)
        arguments = {name: argument(value, other.arguments.get(name)) for name, value in record.arguments.items()}
        rewritten.append(replace(record, arguments=arguments))
        note_made(rewritten[-1], layouts)
    return rewritten


def note_given(record: Record, layouts: Layouts) -> None:
    """Add the layouts of a record's inputs to the layouts of the slots."""
    layouts.update((slot, layout) for slot, layout, _ in record.admitted)


def note_made(record: Record, layouts: Layouts) -> None:
    """Add the layouts of the slots that a record creates or overwrites."""
    layouts.update(zip(record.out_slots, [layout for layout in record.outs if layout is not None], strict=True))
    for name, slots in record.written.items():
        for operand, slot in zip(operands(record.arguments[name]), slots, strict=True):
            layouts[slot] = layouts[operand.slot]


def take_apart(record: Record, into: Integers, layouts: Layouts | None = None) -> Skeleton:
    """Return the hashable structure of a record and append its integers to `into`.

    Without the `layouts` of the slots it reads, views are not compared with their tensors.
    """
    counted, arguments = COUNTED.get(str(record.op)), record.arguments.items()
    read = _as_it_is if layouts is None else plain
    admitted = tuple([(slot, layout_apart(read(layout), into), empty) for slot, layout, empty in record.admitted])
    argument_skeletons = tuple(
        [(n, _named(n, value, into, layouts, COUNT if n == counted else OTHER)) for n, value in arguments]
    )
    start = len(into.values)
    outs = tuple([None if layout is None else layout_apart(read(layout), into) for layout in record.outs])
    if any(operands(value) for value in record.arguments.values()):
        into.made.extend(range(start, len(into.values)))
    return (
        record.op,
        admitted,
        argument_skeletons,
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
    """Return a record of the same structure with other integers, in the order of `take_apart`. `layouts` are the old
    and the new layouts of slots; the record's inputs are added to the new ones. With `outs`, which computes the layouts
    of results, `integers` has none of them."""
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
        with_arguments = replace(record, admitted=admitted, arguments=arguments)
        return replace(with_arguments, outs=tuple(outs(with_arguments, layouts[1])))
    results = tuple([None if layout is None else new_layout(read(layout), integers) for layout in record.outs])
    return replace(record, admitted=admitted, arguments=arguments, outs=results)


def _named(name: str, value: Any, into: Integers, layouts: Layouts | None, kind: int) -> Any:
    if name not in STRUCTURE:
        return _argument(value, into, layouts, kind)
    return type(value), tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def form_of(value: Any) -> Any:
    """Return the nesting of types in an argument: where it has operands, run-time numbers and integers."""
    if isinstance(value, list | tuple):
        return tuple([form_of(item) for item in cast("Sequence[Any]", value)])
    return type(value)


def _argument(value: Any, into: Integers, layouts: Layouts | None, kind: int = OTHER) -> Any:
    if type(value) is int or type(value) is Size:
        into.add((value,), kind)
        return int, value < 0  # the sign may select a branch, such as a diagonal below the main one
    if isinstance(value, Operand):
        return value.slot, _operand(value, into, layouts)
    if isinstance(value, Number):
        return value
    if isinstance(value, list | tuple):
        return (type(cast("object", value)), *[_argument(v, into, layouts) for v in cast("Sequence[Any]", value)])
    if isinstance(value, float | complex):  # as text NaN equals itself, and the two zeros differ
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
    """Return whether an operand is the full tensor of this layout, or contiguous indices along each of
    its dimensions."""
    if operand.view is None:
        return True
    size, stride = operand.view[:2]
    same_strides = len(stride) == len(layout.stride) and all(map(_steps_alike, size, stride, layout.stride))
    return same_strides and _has_begins(operand.view, layout)


def _steps_alike(n: int, step: int, other: int) -> bool:
    return n == 1 or step == other


def _has_begins(view: tuple[Any, ...], layout: Layout) -> bool:
    """Return whether the offset of a view decomposes into an index in each dimension of its tensor."""
    offset, dtype = view[2:]
    return dtype == layout.dtype and 0 not in layout.shape and _offset(_begins(offset, layout), layout) == offset


def _begins(offset: int, layout: Layout) -> list[int]:
    begins: list[int] = []
    for dim in layout.memory_order:
        begin, offset = (0, offset) if layout.shape[dim] == 1 else divmod(offset, layout.stride[dim])
        begins.append(begin)
    return begins


def _offset(begins: Sequence[int], layout: Layout) -> int:
    return sum(begin * layout.stride[dim] for begin, dim in zip(begins, layout.memory_order, strict=True))


def _without_ones(
    size: tuple[int, ...], stride: tuple[int, ...], order: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the strides with canonical strides for dimensions of one element.

    For dense tensors these are the strides of outermost dimensions, or dense ones in the memory `order`. Otherwise they
    are 0.
    """
    if 1 not in size:
        return stride
    if order is not None:
        dense = dense_strides(size, order)
        return dense if all(map(_steps_alike, size, stride, dense)) and _order(dense) == order else stride
    extent = max([n * step for n, step in zip(size, stride, strict=True) if n != 1], default=1)
    outer = tuple([extent if n == 1 else step for n, step in zip(size, stride, strict=True)])
    if dense_order(size, outer) is not None:
        return outer
    return tuple([0 if n == 1 else step for n, step in zip(size, stride, strict=True)])


def _order(stride: Sequence[int]) -> list[int]:
    return sorted(range(len(stride)), key=lambda dim: -stride[dim])


def _as_it_is(layout: Layout) -> Layout:
    return layout


def plain(layout: Layout) -> Layout:
    """Return the layout with canonical strides for dimensions of one element."""
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
    """Return the structure of a layout and append its integers to `into`."""
    return layout.dtype, *strided(layout.shape, layout.stride, into)


def new_layout(layout: Layout, integers: Iterator[int]) -> Layout:
    """Return a layout of the same structure with the next integers."""
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
    """Return the structure of a size with its strides and append their integers to `into`."""
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
