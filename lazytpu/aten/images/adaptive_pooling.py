"""Pooling to a given size, in equal windows (adaptive) or random ones (fractional)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from lazytpu.aten.images.pooling import Pooling, by_rank, max_pool, max_pool_gradient, planes, scatter_planes
from lazytpu.aten.indexing.tables import Table, gathered, take
from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.ir.types import dtype_of, is_float, numel, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

    Pair = tuple[SSAValue, SSAValue]


def _bounds(size: int, places: int) -> tuple[np.ndarray, np.ndarray]:
    """The start and end of each window: floor(i n / o) and ceil((i + 1) n / o)."""
    index = np.arange(places)
    return index * size // places, -(-(index + 1) * size // places)


def _equal(size: Sequence[int], places: Sequence[int]) -> Pooling | None:
    """The windows as plain, adjacent ones if their number divides the size, else None."""
    if any(n % o for n, o in zip(size, places, strict=True)):
        return None
    kernel = [n // o for n, o in zip(size, places, strict=True)]
    return Pooling.of(size, places, kernel, kernel, [0] * len(kernel))


def _paired(places: Sequence[int], kernel: Sequence[int]) -> list[int]:
    return [n for pair in zip(places, kernel, strict=True) for n in pair]


@by_rank("_adaptive_avg_pool{}d")
def adaptive_avg_pool(b: Builder, rank: int, self: SSAValue, output_size: list[int]) -> SSAValue:
    """Means of `output_size` windows; f16 and bf16 are summed and divided in f32."""
    dtype, shape = b.out[0]
    if 0 in shape:
        return b.constant(0, dtype, shape)
    x, places = planes(b, b.convert(self, wide(dtype)), rank), shape[-rank:]
    equal = _equal(shape_of(self)[-rank:], places)
    if equal is not None:
        blocks = b.reshape(x, (shape_of(x)[0], *_paired(places, equal.kernel)))
        total = b.reduce("add", blocks, [2 + 2 * d for d in range(rank)])
        mean = b.div(total, full(b, prod(equal.kernel), total))
        return b.convert(b.reshape(mean, shape), dtype)
    for dim in range(1, rank + 1):
        size = shape_of(x)[dim]
        starts, ends = _bounds(size, places[dim - 1])
        x = gathered(b, x, Table.ragged(size, [np.arange(s, e) for s, e in zip(starts, ends, strict=True)]), dim)
        x = b.div(x, b.broadcast_in_dim(b.array(ends - starts, dtype_of(x)), shape_of(x), [dim]))
    return b.convert(b.reshape(x, shape), dtype)


@by_rank("_adaptive_avg_pool{}d_backward")
def adaptive_avg_pool_backward(b: Builder, rank: int, grad_output: SSAValue, self: SSAValue) -> SSAValue:
    """Each element gets the gradients of the windows it is in, divided by their sizes."""
    dtype, shape = dtype_of(grad_output), shape_of(self)
    if 0 in shape or 0 in shape_of(grad_output):
        return b.constant(0, dtype, shape)
    x, size = planes(b, b.convert(grad_output, wide(dtype)), rank), shape[-rank:]
    equal = _equal(size, shape_of(x)[1:])
    if equal is not None:
        share = b.div(x, full(b, prod(equal.kernel), x))
        blocks = (shape_of(x)[0], *_paired(equal.places, equal.kernel))
        spread = b.broadcast_in_dim(share, blocks, (0, *(1 + 2 * d for d in range(rank))))
        return b.convert(b.reshape(spread, shape), dtype)
    for dim in range(1, rank + 1):
        starts, ends = _bounds(size[dim - 1], shape_of(x)[dim])
        x = b.div(x, b.broadcast_in_dim(b.array(ends - starts, dtype_of(x)), shape_of(x), [dim]))
        members = [np.nonzero((starts <= i) & (i < ends))[0] for i in range(size[dim - 1])]
        x = gathered(b, x, Table.ragged(len(starts), members), dim)
    return b.convert(b.reshape(x, shape), dtype)


def _last_nan(b: Builder, x: SSAValue, dtype: str) -> SSAValue:
    """The last position of a NaN in each row, or 0: of a window torch keeps the last NaN, but the first maximum."""
    dim = len(shape_of(x)) - 1
    position = b.iota(dtype, shape_of(x), dim)
    return b.reduce("max", b.select(b.compare("NE", x, x), position, full(b, 0, position)), [dim])


@by_rank("adaptive_max_pool{}d")
def adaptive_max_pool(b: Builder, rank: int, self: SSAValue, output_size: list[int]) -> Pair:
    """(maxima, i64 row-major indices) of `output_size` windows."""
    dtype, shape = b.out[0]
    if 0 in shape:
        return b.constant(0, dtype, shape), b.constant(0, "i64", shape)
    size, places = shape_of(self)[-rank:], shape[-rank:]
    equal = _equal(size, places)
    if equal is not None:
        return max_pool(b, self, equal)
    # Shorter windows repeat their last element, which does not change the index of the first maximum.
    x, windows = planes(b, self, rank), [_bounds(n, o) for n, o in zip(size, places, strict=True)]
    lengths = [int((ends - starts).max()) for starts, ends in windows]
    for dim, ((starts, ends), length) in enumerate(zip(windows, lengths, strict=True)):
        elements = np.minimum(starts[:, None] + np.arange(length), ends[:, None] - 1)
        x = take(b, x, elements, 1 + 2 * dim)
    order = (0, *(1 + 2 * d for d in range(rank)), *(2 + 2 * d for d in range(rank)))
    x = b.reshape(b.transpose(x, order), (shape_of(x)[0], *places, prod(lengths)))
    values, position = b.argreduce("max", x, rank + 1)
    if is_float(dtype):
        position = b.max(position, _last_nan(b, x, dtype_of(position)))
    index = full(b, 0, position)
    for dim, ((starts, ends), length) in enumerate(zip(windows, lengths, strict=True)):
        inner = prod(lengths[dim + 1 :])
        offset = b.binary("div", position, full(b, inner, position))
        offset = b.binary("rem", offset, full(b, length, position))
        first, last = (
            b.broadcast_in_dim(b.array(v, "i64"), shape_of(position), [dim + 1]) for v in (starts, ends - starts - 1)
        )
        index = b.add(b.mul(index, full(b, size[dim], index)), b.add(first, b.min(offset, last)))
    return b.reshape(values, shape), b.reshape(index, shape)


@by_rank("adaptive_max_pool{}d_backward")
def adaptive_max_pool_backward(
    b: Builder, rank: int, grad_output: SSAValue, self: SSAValue, indices: SSAValue
) -> SSAValue:
    """Each gradient at the position of its maximum."""
    equal = None if 0 in shape_of(grad_output) else _equal(shape_of(self)[-rank:], shape_of(grad_output)[-rank:])
    if equal is not None:
        return max_pool_gradient(b, grad_output, self, indices, equal)
    return scatter_planes(b, grad_output, indices, shape_of(self), rank)


@by_rank("fractional_max_pool{}d")
def fractional_max_pool(
    b: Builder,
    rank: int,
    self: SSAValue,
    kernel_size: list[int],
    output_size: list[int],
    random_samples: SSAValue,
) -> Pair:
    """(maxima, i64 row-major indices). Samples are ordered (W, H) in two dimensions, but (T, H, W) in three."""
    dtype, shape = b.out[0]
    if 0 in shape:
        return b.constant(0, dtype, shape), b.constant(0, "i64", shape)
    x, compute = planes(b, b.convert(self, wide(dtype)), rank), wide(dtype)
    count = shape_of(x)[0]
    samples = b.reshape(b.convert(random_samples, compute), (numel(shape_of(random_samples)) // rank, rank))
    samples = b.slice(samples, (0, 0), (count, rank))  # there may be samples for a larger batch
    samples = b.reverse(samples, [1]) if rank == 2 else samples
    kernel, places = tuple(kernel_size), tuple(shape[-rank:])
    results = [(d, (count, *places)) for d in (compute, "i64")]
    values, indices = b.template("fractional_max_pool", [x, samples], results, sizes=kernel, places=places)
    return b.convert(b.reshape(values, shape), dtype), b.reshape(indices, shape)


@by_rank("fractional_max_pool{}d_backward")
def fractional_max_pool_backward(
    b: Builder,
    rank: int,
    grad_output: SSAValue,
    self: SSAValue,
    kernel_size: list[int],
    output_size: list[int],
    indices: SSAValue,
) -> SSAValue:
    """Each gradient at the position of its maximum."""
    return scatter_planes(b, grad_output, indices, shape_of(self), rank)
