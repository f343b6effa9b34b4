"""Memory orders of dense tensors, whose strides follow from sizes and order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from lazytpu.ir.symbolic import has_sizes


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
