"""Records split into their integers and their structure (skeleton), and rebuilt from other integers.

Traces of equal structure differ in sizes only; an integer of one may be a size expression for all. Dense strides follow
from sizes, so they are no integers: the structure has the memory order of the dimensions instead. For a custom kernel
the structure has its family.

Within a trace, a full tensor and a slice of it have the same structure: a cache, say, may sometimes be sliced to fewer
tokens. The slice has the tensor's strides; its sizes, and its start in each dimension, are integers. Strides of
dimensions of one element are ignored, since torch sets them arbitrarily.

One walk knows where the integers are. `Apart` collects them, and `Together` replaces them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from lazytpu.engine.sizes.strides import (
    begins_of,
    dense_order,
    dense_strides,
    is_part,
    offset_of,
    plain,
    steps_alike,
    without_ones,
)
from lazytpu.ir.forms import Form
from lazytpu.ir.symbolic import MIN_SYMBOL, Size, has_sizes
from lazytpu.trace.extract import Slots, made
from lazytpu.trace.families import MEMBERS
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout

Skeleton = tuple[Any, ...]
Strides = tuple[Any, ...]
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


Layouts = dict[int, Layout]
"""The layouts of a trace's slots up to some record."""


class Walk:
    """A walk over the records of a trace that rebuilds them with the integers that `take` returns.

    `note` receives everything else that distinguishes one structure from another. `before` and `after` are the old and
    the new layouts of slots, and `new` creates one.
    """

    def __init__(self) -> None:
        self.before, self.after = Layouts(), Layouts()
        self.new: Callable[..., Layout] = Layout

    def take(self, numbers: Sequence[Any], kind: int) -> Sequence[Any]:
        """Return the replacements of integers of one kind."""
        raise NotImplementedError

    def note(self, structure: object, /) -> None:
        """Receive a part of the structure. It tells how many integers and parts follow."""

    def input(self, slot: int, layout: Layout, empty: bool) -> None:
        """Receive an input, whose layout follows."""

    def given(self, record: Record) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the new inputs and arguments of a record."""
        self.before.update((slot, layout) for slot, layout, _ in record.admitted)
        admitted = list[Any]()
        for slot, layout, empty in record.admitted:
            self.input(slot, layout, empty)
            admitted.append((slot, self.layout(layout), empty))
            self.after[slot] = admitted[-1][1]
        counted, arguments = COUNTED.get(str(record.op)), dict[str, Any]()
        for name, value in record.arguments.items():
            kind = COUNT if name == counted else OTHER
            arguments[name] = self.fixed(value) if name in STRUCTURE else self.argument(value, kind)
        return tuple(admitted), arguments

    def outs(self, record: Record) -> tuple[Layout | None, ...]:
        return tuple([None if layout is None else self.layout(layout) for layout in record.outs])

    def argument(self, value: Any, kind: int = OTHER) -> Any:
        if type(value) is int or type(value) is Size:
            self.note((int, value < 0))  # the sign may select a branch, such as a diagonal below the main one
            return self.take((value,), kind)[0]
        if isinstance(value, Operand):
            self.note(value.slot)
            return self.operand(value)
        if isinstance(value, list | tuple):
            items = cast("Sequence[Any]", value)
            self.note((type(items), len(items)))
            new = [self.argument(item) for item in items]
            return new if isinstance(value, list) else tuple(new)
        return self.fixed(value)

    def fixed(self, value: Any) -> Any:
        """Return a value without integers."""
        if isinstance(value, float | complex):  # as text NaN equals itself, and the two zeros differ
            self.note((type(value), repr(value)))
        elif type(value) is str and value in MEMBERS:
            self.note((str, id(MEMBERS[value].family)))
        else:
            self.note((type(value), tuple(cast("list[Any]", value)) if isinstance(value, list) else value))
        return value

    def operand(self, operand: Operand) -> Operand:
        view, slot = operand.view, operand.slot
        if view is None:
            self.note("part")
            shape = self.before[slot].shape
            self.take(shape, SIZE)
            self.take([0] * len(shape), BEGIN)
            return operand
        size, stride, dtype = tuple(view[0]), tuple(view[1]), view[3]
        begins = begins_of(view, self.before[slot])
        if begins is not None and steps_alike(size, stride, self.before[slot].stride):
            self.note("part")
            size, stride = tuple(self.take(size, SIZE)), self.after[slot].stride
        else:
            self.note((dtype, begins is None))
            size, stride = self.strided(size, stride, without_ones(size, stride))
        if begins is None:
            return Operand(slot, (size, stride, self.take((view[2],), OTHER)[0], dtype))
        new = self.take(begins, BEGIN)
        return operand if new is begins else Operand(slot, (size, stride, offset_of(new, self.after[slot]), dtype))

    def layout(self, layout: Layout) -> Layout:
        canonical = plain(layout)
        self.note(layout.dtype)
        size, stride = self.strided(layout.shape, layout.stride, canonical.stride)
        return canonical if size is layout.shape else self.new(layout.dtype, size, stride)

    def strided(self, size: Strides, stride: Strides, canonical: Strides) -> tuple[Strides, Strides]:
        """Return a new size and its canonical strides; `stride` are the old ones and `canonical` the old canonical
        ones."""
        order = dense_order(size, canonical)
        self.note(order)
        new = tuple(self.take(size, SIZE))
        if order is None:
            return new, tuple(self.take(canonical, OTHER))
        return new, canonical if new is size else dense_strides(new, order)


@dataclass(slots=True)
class Integers:
    """The integers of a trace, in order, and the kind of each. With `alike`, sizes 0 and 1 do not enter the
    structure.

    - `made`: the positions of integers in results of ops that have arguments.
    - `inputs`: position, slot and dimension of each size of each input.
    - `ends`: the number of integers up to the end of each record.
    """

    values: list[int]
    kinds: list[int]
    alike: bool = False
    made: list[int] = field(default_factory=list[int])
    inputs: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    ends: list[int] = field(default_factory=list[int])


class Apart(Walk):
    """Appends integers to `into`; `structure` returns the structure of everything since its last call."""

    def __init__(self, into: Integers):
        super().__init__()
        self.into, self.after, self._structure = into, self.before, list[Any]()
        self.note = self._structure.append

    def take(self, numbers: Sequence[Any], kind: int) -> Sequence[Any]:
        if kind == SIZE:  # 0, 1, or MIN_SYMBOL for others
            alike = self.into.alike
            self.note(tuple([MIN_SYMBOL if alike or n > MIN_SYMBOL else n for n in numbers]))
        self.into.values.extend(numbers)
        self.into.kinds.extend([kind] * len(numbers))
        return numbers

    def input(self, slot: int, layout: Layout, empty: bool) -> None:
        self.note((slot, empty))
        start = len(self.into.values)
        if not empty:
            self.into.inputs.extend([(start + dim, slot, dim) for dim in range(len(layout.shape))])

    def structure(self) -> Skeleton:
        structure = tuple(self._structure)
        self._structure.clear()
        return structure

    def record(self, record: Record) -> None:
        written, into = tuple(record.written.items()), self.into
        self.note((record.op, record.out_slots, written, record.rng, record.settings, record.in_backward, record.tuned))
        self.note((len(record.admitted), tuple(record.arguments), tuple([out is None for out in record.outs])))
        self.given(record)
        start = len(into.values)
        self.outs(record)
        if record.arguments:
            into.made.extend(range(start, len(into.values)))
        into.ends.append(len(into.values))
        self.before.update(made(record, self.before))


class Together(Walk):
    """Rebuilds records with the integers of an iterator."""

    def __init__(self, integers: Iterator[Any]):
        super().__init__()
        self._integers = integers

    def take(self, numbers: Sequence[Any], kind: int) -> Sequence[Any]:
        return [next(self._integers) for _ in numbers]

    def record(self, record: Record) -> Record:
        admitted, arguments = self.given(record)
        new = replace(record, admitted=admitted, arguments=arguments)
        new = replace(new, outs=self.results(new))
        self.before.update(made(record, self.before))
        self.after.update(made(new, self.after))
        return new

    def results(self, record: Record) -> tuple[Layout | None, ...]:
        """Return the new layouts of the results of a record whose arguments are new."""
        return self.outs(record)


def trace_apart(records: Sequence[Record], into: Integers) -> list[Skeleton]:
    """Return the structures of a trace's records and append their integers to `into`."""
    walk, skeletons = Apart(into), list[Skeleton]()
    for record in records:
        walk.record(record)
        skeletons.append(walk.structure())
    return skeletons


def record_of(records: Sequence[Record], position: int) -> Record:
    """Return the record that has the integer at a position."""
    integers = Integers([], [], alike=True)
    trace_apart(records, integers)
    return records[bisect_right(integers.ends, position)]


def trace_together(records: Sequence[Record], integers: Iterator[Any]) -> list[Record]:
    """Return records of the same structure with other integers, in the order of `trace_apart`."""
    return list(map(Together(integers).record, records))


def with_sizes(value: Any, change: Callable[[Size], Any], layout: Callable[..., Layout] = Layout) -> Any:
    """Return a copy of a record, or of a part of one, in which `change` replaces each symbolic size. `layout` creates
    the layouts."""
    if type(value) is Size:
        return change(value)
    if isinstance(value, Record):
        names = "arguments", "admitted", "outs"
        return replace(value, **{name: with_sizes(getattr(value, name), change, layout) for name in names})
    if isinstance(value, Operand):
        return value if value.view is None else Operand(value.slot, with_sizes(value.view, change))
    if isinstance(value, Layout):
        parts = (with_sizes(part, change) for part in (value.shape, value.stride))
        return layout(value.dtype, *parts) if has_sizes((*value.shape, *value.stride)) else value
    if isinstance(value, dict):
        return {name: with_sizes(item, change) for name, item in cast("dict[str, Any]", value).items()}
    if type(value) in (list, tuple):
        return type(value)([with_sizes(item, change, layout) for item in value])
    return value


def forms_in(value: Any) -> frozenset[Form]:
    """Return the expressions of the symbolic sizes in a record, or in a part of one."""
    forms = set[Form]()
    with_sizes(value, lambda size: forms.add(size.form) or size)
    return frozenset(forms)


def with_parts(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """Rewrite each full-tensor operand as an explicit full view wherever `others` uses a slice, so that both traces
    have the same structure.

    A full operand has no sizes of its own when it is rebuilt. Operands without a counterpart in `others` are kept.
    """
    layouts, rewritten = Slots(records).layouts, list[Record]()

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
        arguments = {name: argument(value, other.arguments.get(name)) for name, value in record.arguments.items()}
        rewritten.append(replace(record, arguments=arguments))
    return rewritten


def form_of(value: Any) -> Any:
    """Return the nesting of types in an argument: where it has operands, run-time numbers and integers."""
    if isinstance(value, list | tuple):
        return tuple([form_of(item) for item in cast("Sequence[Any]", value)])
    return type(value)
