"""Parts of a tensor whose sizes depend on values, such as the tokens of each expert.

Their sizes add up to the size of the tensor, but the greatest sizes of a program for many sizes exceed it together. So
a view of such a part is read and written at a run-time start, where its greatest size fits, and parts that are joined
again are cropped to the tensor's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.views.access import Base, View
    from lazytpu.ir.builder import Builder


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts in the records of a trace, by the number of the record.

    - `views`: pairs of a record and a slot. The record's views of the slot have run-time starts.
    - `joined`: records whose results are cropped.
    """

    views: frozenset[tuple[int, int]] = frozenset()
    joined: frozenset[int] = frozenset()


NO_PARTS = Parts()


def read(b: Builder, memory: SSAValue, base: Base, view: View) -> SSAValue:
    """Return the elements of a view whose dimensions are those of its storage, in any order."""
    order = _order(view)
    value = b.dynamic_slice(memory, _starts(b, base, view), [view.size[dim] for dim in order])
    return b.transpose(value, [order.index(dim) for dim in range(len(order))])


def write(b: Builder, memory: SSAValue, base: Base, view: View, value: SSAValue) -> SSAValue:
    """Return the storage's new value after writing `value` through such a view."""
    return b.dynamic_update_slice(memory, b.transpose(value, _order(view)), _starts(b, base, view))


def crop(b: Builder, value: SSAValue, shape: Sequence[int]) -> SSAValue:
    """Return the first elements of each dimension of a value."""
    return b.slice(value, [0] * len(shape), shape)


def _order(view: View) -> list[int]:
    """Return the dimensions of a view from the largest stride to the smallest."""
    return sorted(range(len(view.stride)), key=lambda dim: -view.stride[dim])


def _starts(b: Builder, base: Base, view: View) -> list[SSAValue]:
    """Return the index in each dimension, in memory order, at which a view begins."""
    offset = view.offset
    starts: list[SSAValue] = []
    for dim in base.order:
        begin, offset = (0, offset) if base.size[dim] == 1 else divmod(offset, base.stride[dim])
        starts.append(b.constant(begin, "i32"))
    return starts
