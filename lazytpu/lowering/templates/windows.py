"""Pooling windows, in the form that is fast on each platform.

Arrays are [planes, …] with one to three spatial dimensions; windows have one number for each of these. The TPU has
windowed reductions. XLA:CPU runs them as plain loops, so there the window is unrolled along one dimension after the
other, and gradients are scattered. The figures are milliseconds on XLA:CPU for 16 x 64 planes on 2 cores, and in the
last column microseconds by libtpu's estimates for v6e for 32 x 128 planes:

| | 2x2 of 32 x 32 | 3x3, stride 2, of 32 x 32 | 8x8 of 16 x 16 | the same on the TPU |
|---|---|---|---|---|
| max and index, unrolled | 0.12 | 2.2 | 0.30 | 17, 19, 16 |
| max and index, one windowed reduction of pairs | 2.5 | 7.5 | 0.74 | 15, 15, 3 |
| max backward, scatter | 0.27 | 0.31 | 0.04 | 32, 52, 6 |
| max backward, select and scatter | 5.5 | 7.9 | 0.75 | 23, 24, 6 |
| max backward, gather from windows | 0.14 | 0.99 | 0.07 | 18, 156, 5 |
| sum, unrolled | 0.11 | 0.22 | 0.04 | 13, 14, 6 |
| sum, windowed reduction | 1.2 | 0.33 | 0.10 | 13, 13, 3 |
| sum backward, unrolled | 0.52 | 0.41 | 0.27 | 14, 15, 8 |
| sum backward, windowed reduction | 1.1 | 2.5 | 2.5 | 13, 13, 3 |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lazytpu.lowering.templates.registry import template

UNROLLED = 32  # a window with more elements along one dimension is a loop on the CPU too


class PoolWindow(NamedTuple):
    """The size and movement of a window, with one number for each spatial dimension."""

    sizes: Sequence[int]
    strides: Sequence[int]
    low: Sequence[int]
    high: Sequence[int]
    dilation: Sequence[int]

    @property
    def spans(self) -> list[int]:
        """The extent of the dilated window."""
        return [(k - 1) * d + 1 for k, d in zip(self.sizes, self.dilation, strict=True)]

    def places(self, shape: Sequence[int]) -> list[int]:
        """The number of window positions over these spatial dimensions."""
        terms = zip(shape, self.low, self.high, self.spans, self.strides, strict=True)
        return [(n + low + high - span) // s + 1 for n, low, high, span, s in terms]


def _pad(x: jax.Array, value: Any, low: Sequence[int], high: Sequence[int]) -> jax.Array:
    return lax.pad(x, jnp.asarray(value, x.dtype), [(0, 0, 0), *((a, b, 0) for a, b in zip(low, high, strict=True))])


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).min


def _flat_index(shape: Sequence[int]) -> jax.Array:
    """The row-major position in one plane."""
    return lax.broadcasted_iota(jnp.int32, (prod(shape),), 0).reshape(shape)


@template("max_pool")
def max_pool(x: jax.Array, **window: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """(maxima, i64 row-major indices in the plane). Of equal elements the first is chosen, of NaNs the last, padding
    never."""
    chosen = PoolWindow(**window)
    values, indices = lax.platform_dependent(
        x, cpu=partial(_max_by_dimension, window=chosen), default=partial(_max_of_pairs, window=chosen)
    )
    return values, indices.astype(jnp.int64)


def _max_by_dimension(x: jax.Array, *, window: PoolWindow) -> tuple[jax.Array, jax.Array]:
    """The maximum along one dimension after the other, the last first, so that ties go to the first element in
    row-major order."""
    best, best_index = x, jnp.broadcast_to(_flat_index(x.shape[1:]), x.shape)
    for dim in reversed(range(1, x.ndim)):
        size, stride, low, high, dilation = (v[dim - 1] for v in window)
        padding = [(low, high, 0) if d == dim else (0, 0, 0) for d in range(x.ndim)]
        values = lax.pad(best, jnp.asarray(_lowest(x.dtype), x.dtype), padding)
        indices = lax.pad(best_index, jnp.asarray(-1, best_index.dtype), padding)
        last = (values.shape[dim] - (size - 1) * dilation - 1) // stride * stride + 1
        for tap in range(size):
            start = tap * dilation
            value, index = (lax.slice_in_dim(v, start, start + last, stride, dim) for v in (values, indices))
            if tap == 0:
                best, best_index = value, index
                continue
            better = (value > best) | (value != value)
            if low > 0 or high > 0:
                better |= best_index < 0  # anything is better than padding, even -inf
                better &= index >= 0
            best, best_index = jnp.where(better, value, best), jnp.where(better, index, best_index)
    return best, best_index


def _max_of_pairs(x: jax.Array, *, window: PoolWindow) -> tuple[jax.Array, jax.Array]:
    """The maximum as one windowed reduction of (value, index) pairs."""
    none = np.iinfo(np.int32).max

    def better(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (a, i), (b, j) = first, second
        take = jnp.where(a != a, (b != b) & (j > i), (b > a) | (b != b) | ((b == a) & (j < i)))
        return jnp.where(take, b, a), jnp.where(take, j, i)

    values, indices = lax.reduce_window(
        (x, jnp.broadcast_to(_flat_index(x.shape[1:]), x.shape)),
        (jnp.asarray(_lowest(x.dtype), x.dtype), jnp.asarray(none, jnp.int32)),
        better,
        (1, *window.sizes),
        (1, *window.strides),
        [(0, 0), *zip(window.low, window.high, strict=True)],
        window_dilation=(1, *window.dilation),
    )
    return values, indices


@template("max_pool_backward")
def max_pool_backward(grad: jax.Array, x: jax.Array, indices: jax.Array, **window: Sequence[int]) -> jax.Array:
    """The gradient of x: each gradient goes to the element that was the maximum, as `indices` of `max_pool` say."""
    chosen = PoolWindow(**window)
    return lax.platform_dependent(
        grad, x, indices, cpu=partial(_scattered, window=chosen), default=partial(_selected, window=chosen)
    )


def _scattered(grad: jax.Array, x: jax.Array, indices: jax.Array, *, window: PoolWindow) -> jax.Array:
    if all(span <= stride for span, stride in zip(window.spans, window.strides, strict=True)):
        return _gathered(grad, x, indices, window=window)
    planes, size = x.shape[0], prod(x.shape[1:])
    offsets = jnp.arange(planes, dtype=jnp.int32)[:, None] * size
    flat = (indices.reshape(planes, -1).astype(jnp.int32) + offsets).reshape(-1)
    wide = jnp.promote_types(grad.dtype, jnp.float32)  # an element may be the maximum of many windows
    added = jnp.zeros(planes * size, wide).at[flat].add(grad.reshape(-1).astype(wide))
    return added.astype(grad.dtype).reshape(x.shape)


def _selected(grad: jax.Array, x: jax.Array, indices: jax.Array, *, window: PoolWindow) -> jax.Array:
    """XLA's select-and-scatter, which has no dilated windows, and no float64 on a TPU."""
    disjoint = all(span <= stride for span, stride in zip(window.spans, window.strides, strict=True))
    if disjoint or any(d > 1 for d in window.dilation) or x.dtype == jnp.float64:
        return _gathered(grad, x, indices, window=window)

    def forward(x: jax.Array) -> jax.Array:
        return lax.reduce_window(
            x,
            -jnp.inf,
            lax.max,
            (1, *window.sizes),
            (1, *window.strides),
            [(0, 0), *zip(window.low, window.high, strict=True)],
        )

    return jax.vjp(forward, x)[1](grad)[0]


def _gathered(grad: jax.Array, x: jax.Array, indices: jax.Array, *, window: PoolWindow) -> jax.Array:
    """For each element of x, the sum of the gradients of the windows that chose it, among those that contain it.
    Elements are (position, offset) pairs along each dimension, so that it takes a few shifts of the positions."""
    strides, rank = window.strides, x.ndim - 1
    shifts = [-(-span // s) for span, s in zip(window.spans, strides, strict=True)]
    blocks = [-(-(n + low) // s) for n, low, s in zip(x.shape[1:], window.low, strides, strict=True)]
    positions = [n + t - 1 for n, t in zip(blocks, shifts, strict=True)]
    high = [n - (t - 1) - g for n, t, g in zip(positions, shifts, grad.shape[1:], strict=True)]
    low = [t - 1 for t in shifts]
    chosen = _pad(indices.astype(jnp.int32), -1, low, high)
    padded_grad = _pad(grad, 0, low, high)
    paired = [n for pair in zip(blocks, strides, strict=True) for n in pair]
    position_index = jnp.zeros(paired, jnp.int32)
    for dim in range(rank):
        position, offset = (lax.broadcasted_iota(jnp.int32, paired, 2 * dim + k) for k in (0, 1))
        position_index = position_index * x.shape[1 + dim] + position * strides[dim] + offset - window.low[dim]
    total = jnp.zeros((x.shape[0], *paired), grad.dtype)
    pair_dims = (0, *(1 + 2 * dim for dim in range(rank)))
    for shift in product(*map(range, shifts)):
        limits = [a + n for a, n in zip(shift, blocks, strict=True)]
        index, value = (lax.slice(v, (0, *shift), (x.shape[0], *limits)) for v in (chosen, padded_grad))
        index, value = (lax.broadcast_in_dim(v, total.shape, pair_dims) for v in (index, value))
        total += jnp.where(index == position_index, value, 0)
    interleaved = total.reshape(x.shape[0], *(n * s for n, s in zip(blocks, strides, strict=True)))
    limits = [low + n for low, n in zip(window.low, x.shape[1:], strict=True)]
    return lax.slice(interleaved, (0, *window.low), (x.shape[0], *limits))


@template("window_sum")
def window_sum(x: jax.Array, *, base_dilation: Sequence[int], **window: Sequence[int]) -> jax.Array:
    """Sums of a window over x, which may be dilated with zeros between its elements."""
    parameters = {"window": PoolWindow(**window), "base_dilation": base_dilation}
    return lax.platform_dependent(x, cpu=partial(_sum_by_dimension, **parameters), default=partial(_sum, **parameters))


def _sum(x: jax.Array, *, window: PoolWindow, base_dilation: Sequence[int]) -> jax.Array:
    return lax.reduce_window(
        x,
        jnp.zeros((), x.dtype),
        lax.add,
        (1, *window.sizes),
        (1, *window.strides),
        [(0, 0), *zip(window.low, window.high, strict=True)],
        base_dilation=(1, *base_dilation),
        window_dilation=(1, *window.dilation),
    )


def _sum_by_dimension(x: jax.Array, *, window: PoolWindow, base_dilation: Sequence[int]) -> jax.Array:
    if max(window.sizes) > UNROLLED:
        return _sum(x, window=window, base_dilation=base_dilation)
    for dim in range(1, x.ndim):
        size, stride, low, high, dilation = (v[dim - 1] for v in window)
        padding = [(low, high, base_dilation[dim - 1] - 1) if d == dim else (0, 0, 0) for d in range(x.ndim)]
        padded = lax.pad(x, jnp.zeros((), x.dtype), padding)
        if base_dilation[dim - 1] > 1:  # as in the lowering of `pad`
            padded = lax.reduce_precision(padded, jnp.finfo(x.dtype).nexp, jnp.finfo(x.dtype).nmant)
        last = (padded.shape[dim] - (size - 1) * dilation - 1) // stride * stride + 1
        taps = [lax.slice_in_dim(padded, t * dilation, t * dilation + last, stride, dim) for t in range(size)]
        x = sum(taps[1:], taps[0])
    return x


@template("fractional_max_pool")
def fractional_max_pool(
    x: jax.Array, samples: jax.Array, *, sizes: Sequence[int], places: Sequence[int]
) -> tuple[jax.Array, jax.Array]:
    """(maxima, i64 row-major indices) of windows at pseudo-random positions, which `samples` [planes, dimensions] from
    [0, 1) determine (`generate_intervals` in ATen/native/FractionalMaxPooling.h)."""
    rank, planes, plane = len(sizes), x.shape[0], x.shape[1:]
    flat = jnp.zeros((planes, *(1,) * (2 * rank)), jnp.int32)
    for dim, (n, k, o) in enumerate(zip(plane, sizes, places, strict=True)):
        alpha = jnp.asarray((n - k) / (o - 1) if o > 1 else 0, x.dtype)
        sample = samples[:, dim, None]
        start = ((jnp.arange(o, dtype=x.dtype) + sample) * alpha).astype(jnp.int32) - (sample * alpha).astype(jnp.int32)
        start = start.at[:, -1].set(n - k)
        elements = start[:, :, None] + jnp.arange(k, dtype=jnp.int32)
        shape = [1] * (2 * rank)
        shape[dim], shape[rank + dim] = o, k
        flat = flat * n + elements.reshape(planes, *shape)
    flat = flat.reshape(planes, prod(places), prod(sizes))
    values = jnp.take_along_axis(x.reshape(planes, 1, prod(plane)), flat, 2)
    last_nan = jnp.max(jnp.where(jnp.isnan(values), jnp.arange(values.shape[2]), 0), 2, keepdims=True)
    best = jnp.maximum(jnp.argmax(values, 2, keepdims=True), last_nan)
    maxima, indices = (jnp.take_along_axis(v, best, 2).reshape(planes, *places) for v in (values, flat))
    return maxima, indices.astype(jnp.int64)
