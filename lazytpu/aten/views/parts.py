"""Parts of a tensor whose sizes depend on values, such as the tokens of each expert.

Their sizes add up to the size of the tensor, but the greatest sizes of a program for many sizes exceed it together. So
a view of such a part is read and written at a run-time start, where its greatest size fits, and parts that are joined
again are cropped to the tensor's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lazytpu.ir.symbolic import Size

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.views.access import Base, View
    from lazytpu.ir.builder import Builder


Strided: TypeAlias = "tuple[Sequence[int], Sequence[int]]"
"""The sizes and the strides of dimensions."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts in the records of a trace, by the number of the record.

    - `views`: pairs of a record and a slot. The record's views of the slot have run-time starts.
    - `joined`: records whose results are cropped.
    """

    views: frozenset[tuple[int, int]] = frozenset()
    joined: frozenset[int] = frozenset()


NO_PARTS = Parts()


def dims_of(view: Strided, storage: Strided, order: Sequence[int]) -> list[int | None] | None:
    """Return the dimension of a view that runs along each dimension of its storage, in memory `order`, in steps of 1.
    Both are sizes and strides.

    The view has one index of a storage's dimension where the entry is None, and any dimensions of one element. Return
    None for other views. Symbols stand for sizes of two elements or more.
    """
    (size, stride), (base_size, base_stride) = view, storage
    outermost = sorted(range(len(stride)), key=lambda dim: -stride[dim])
    remaining = [dim for dim in outermost if isinstance(size[dim], Size) or size[dim] != 1]
    dims: list[int | None] = []
    for dim in order:
        along = bool(remaining) and base_size[dim] != 1 and stride[remaining[0]] == base_stride[dim]
        dims.append(remaining.pop(0) if along else None)
    return None if remaining else dims


def read(b: Builder, memory: SSAValue, base: Base, view: View) -> SSAValue:
    """Return the elements of a view that has `dims_of`."""
    dims, order = _order(base, view)
    value = b.dynamic_slice(memory, _starts(b, base, view), [1 if dim is None else view.size[dim] for dim in dims])
    value = b.reshape(value, [view.size[dim] for dim in order])
    kept = sorted(order)
    return b.reshape(b.transpose(value, [order.index(dim) for dim in kept]), view.size)


def write(b: Builder, memory: SSAValue, base: Base, view: View, value: SSAValue) -> SSAValue:
    """Return the storage's new value after writing `value` through such a view."""
    dims, order = _order(base, view)
    kept = sorted(order)
    value = b.transpose(b.reshape(value, [view.size[dim] for dim in kept]), [kept.index(dim) for dim in order])
    value = b.reshape(value, [1 if dim is None else view.size[dim] for dim in dims])
    return b.dynamic_update_slice(memory, value, _starts(b, base, view))


def crop(b: Builder, value: SSAValue, shape: Sequence[int]) -> SSAValue:
    """Return the first elements of each dimension of a value."""
    return b.slice(value, [0] * len(shape), shape)


def _order(base: Base, view: View) -> tuple[list[int | None], list[int]]:
    """Return `dims_of` a view, and its dimensions along the storage's in memory order."""
    dims = dims_of((view.size, view.stride), (base.size, base.stride), base.order)
    assert dims is not None
    return dims, [dim for dim in dims if dim is not None]


def _starts(b: Builder, base: Base, view: View) -> list[SSAValue]:
    """Return the index in each dimension, in memory order, at which a view begins."""
    offset = view.offset
    starts: list[SSAValue] = []
    for dim in base.order:
        begin, offset = (0, offset) if base.size[dim] == 1 else divmod(offset, base.stride[dim])
        starts.append(b.constant(begin, "i32"))
    return starts
