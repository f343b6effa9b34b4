"""Strides: memory orders of dense tensors, parts of tensors, and canonical strides of dimensions of one element."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from lazytpu.ir.symbolic import has_sizes
from lazytpu.trace.trie import Operand
from lazytpu.trace.value import Layout


def dense_order(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...] | None:
    """Return the dimensions ordered from the largest stride to the smallest, or None if the strides are not dense."""
    if has_sizes(size) or has_sizes(stride):
        return _dense_order(size, stride)
    return _cached_order(tuple(size), tuple(stride))


def _dense_order(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...] | None:
    order = tuple(sorted(range(len(size)), key=lambda dim: -stride[dim]))
    return order if dense_strides(size, order) == tuple(stride) else None


_cached_order = lru_cache(maxsize=1 << 14)(_dense_order)


def dense_strides(size: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor with its dimensions in this memory order, outermost first."""
    strides, step = [0] * len(size), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(size[dim], 1)
    return tuple(strides)


def is_part(operand: Operand, layout: Layout) -> bool:
    """Return whether an operand is the full tensor of this layout, or contiguous indices along each of
    its dimensions."""
    view = operand.view
    return view is None or (steps_alike(view[0], view[1], layout.stride) and begins_of(view, layout) is not None)


def steps_alike(size: Sequence[int], stride: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether strides are equal in all dimensions of more than one element."""
    pairs = zip(size, stride, other, strict=False)
    return len(stride) == len(other) and all(n == 1 or step == expected for n, step, expected in pairs)


def begins_of(view: tuple[Any, ...], layout: Layout) -> list[int] | None:
    """Return the index in each dimension of a tensor, in memory order, at which a view begins; None if its offset does
    not decompose into indices."""
    offset, dtype = view[2:]
    if dtype != layout.dtype or 0 in layout.shape:
        return None
    begins: list[int] = []
    for dim in layout.memory_order:
        begin, offset = (0, offset) if layout.shape[dim] == 1 else divmod(offset, layout.stride[dim])
        begins.append(begin)
    return None if offset else begins


def offset_of(begins: Sequence[int], layout: Layout) -> int:
    return sum(begin * layout.stride[dim] for begin, dim in zip(begins, layout.memory_order, strict=True))


def without_ones(size: tuple[int, ...], stride: tuple[int, ...], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the strides with canonical strides for dimensions of one element.

    For dense tensors these are the strides of outermost dimensions, or dense ones in the memory `order`. Otherwise they
    are 0.
    """
    if 1 not in size:
        return stride
    if order is not None:
        dense = dense_strides(size, order)
        return dense if steps_alike(size, stride, dense) and _order(dense) == order else stride
    extent = max([n * step for n, step in zip(size, stride, strict=True) if n != 1], default=1)
    outer = tuple([extent if n == 1 else step for n, step in zip(size, stride, strict=True)])
    if dense_order(size, outer) is not None:
        return outer
    return tuple([0 if n == 1 else step for n, step in zip(size, stride, strict=True)])


def _order(stride: Sequence[int]) -> list[int]:
    return sorted(range(len(stride)), key=lambda dim: -stride[dim])


def plain(layout: Layout) -> Layout:
    """Return the layout with canonical strides for dimensions of one element."""
    if 1 not in layout.shape:
        return layout
    stride = without_ones(layout.shape, layout.stride, layout.memory_order)
    return layout if stride == layout.stride else Layout(layout.dtype, layout.shape, stride)
