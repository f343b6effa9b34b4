"""Grouped and 3-D convolutions, in the form that is fast on each platform.

XLA:TPU computes them directly. XLA:CPU has fast kernels only for one group in one or two dimensions, and plain loops
for the rest, so there

* a depthwise convolution is a sum of shifted products, which fuse: 16 images of 64 x 16 x 16, 3x3, f32, on 2 cores
  take 0.10 ms instead of 7.4, their input gradient 0.10 instead of 7.7 (with stride 2, 0.4 instead of 92), and their
  weight gradient 0.5 instead of 3.4 (with two outputs per group, 1.1 instead of 2450);
* a few groups are convolved one by one: 4 groups take 1.0 ms instead of 3.3, their weight gradient 1.1 instead of 140;
* the weight gradient of many groups is a convolution in feature groups, not in batch groups: 2.6 ms instead of 920 for
  16 groups;
* three dimensions are reduced to two, by moving the window of the first into the features: 4 x 16 x 16^3, 3x3x3, takes
  3.0 ms instead of 16, its gradients 2.7 and 4.3 instead of 12 and 21 (with stride 2, 0.7 and 0.9 instead of 104 and
  8.6).

On the TPU (libtpu's estimates for v6e), 32 x 128 x 28 x 28 takes up to twice as long as shifted products than as its
own depthwise convolution, and four times as long as 32 convolutions than in 32 groups.

All functions return f32 for f16 and bf16.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from itertools import product
from math import prod
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lazytpu.ir.reductions import windowed_shape
from lazytpu.lowering.convolution_window import ConvWindow, without_groups
from lazytpu.lowering.templates.registry import template

TAPS = 64  # a depthwise window of more elements is not unrolled
SPLIT = 32  # groups up to this many are convolved one by one


@template("convolution")
def convolution(x: jax.Array, w: jax.Array, *, groups: int, precision: str, **window: Sequence[int]) -> jax.Array:
    """x [N, C, …] and w [O, C / groups, …] to [N, O, …]."""
    parameters = {"window": ConvWindow(**window), "groups": groups, "precision": precision}
    return lax.platform_dependent(x, w, cpu=partial(_on_cpu, **parameters), default=partial(_plain, **parameters))


@template("convolution_weight_gradient")
def convolution_weight_gradient(
    x: jax.Array, grad: jax.Array, *, groups: int, precision: str, **window: Sequence[int]
) -> jax.Array:
    """The gradient of w, [O, C / groups, …], from x [N, C, …] and the gradient of the result [N, O, …]. `window` is
    the window of the gradient over x, and has as many positions as the kernel has elements."""
    parameters = {"window": ConvWindow(**window), "groups": groups, "precision": precision}
    return lax.platform_dependent(
        x, grad, cpu=partial(_weight_gradient_on_cpu, **parameters), default=partial(_weight_gradient, **parameters)
    )


def _accumulator(x: jax.Array) -> Any:
    return jnp.float32 if x.dtype in (jnp.float16, jnp.bfloat16) else x.dtype


def _xla(
    x: jax.Array,
    w: jax.Array,
    window: ConvWindow,
    layout: str,
    precision: str,
    *,
    groups: int = 1,
    batch_groups: int = 1,
) -> jax.Array:
    """XLA's own convolution; a * in `layout` stands for the spatial dimensions."""
    lhs, rhs, result = layout.replace("*", "012"[: len(window.strides)]).split(",")
    spelled = without_groups(window, x.shape[2:], w.shape[2:])
    product = lax.conv_general_dilated(
        x,
        w,
        spelled.strides,
        list(zip(spelled.low, spelled.high, strict=True)),
        spelled.lhs_dilation,
        spelled.rhs_dilation,
        (lhs, rhs, result),
        feature_group_count=groups,
        batch_group_count=batch_groups,
        precision=precision,
        preferred_element_type=_accumulator(x),
    )
    if spelled is window:
        return product
    places = windowed_shape(x.shape[2:], w.shape[2:], *window)
    return lax.slice(product, [0] * product.ndim, (*product.shape[:2], *places))


def _plain(x: jax.Array, w: jax.Array, window: ConvWindow, groups: int, precision: str) -> jax.Array:
    return _xla(x, w, window, "NC*,OI*,NC*", precision, groups=groups)


def _weight_gradient(x: jax.Array, grad: jax.Array, window: ConvWindow, groups: int, precision: str) -> jax.Array:
    """The weight gradient by batch groups, as in `jax.grad`."""
    return _xla(x, grad, window, "CN*,IO*,CN*", precision, batch_groups=groups)


def _on_cpu(x: jax.Array, w: jax.Array, window: ConvWindow, groups: int, precision: str) -> jax.Array:
    inputs, outputs = w.shape[1], w.shape[0] // groups
    if groups > 1 and min(inputs, outputs) == 1 and prod(w.shape[2:]) <= TAPS:
        return _depthwise(x, w, window, groups)
    if 1 < groups <= SPLIT:
        pairs = zip(jnp.split(x, groups, 1), jnp.split(w, groups), strict=True)
        return jnp.concatenate([_on_cpu(*pair, window, 1, precision) for pair in pairs], 1)
    if len(window.strides) == 3:
        return _in_two_dimensions(x, w, window, groups, precision)
    return _plain(x, w, window, groups, precision)


def _taps(x: jax.Array, kernel: Sequence[int], window: ConvWindow) -> list[jax.Array]:
    """For each element of the kernel, row-major, the elements of x that it is multiplied with, [N, C, positions…]."""
    interior = [d - 1 for d in window.lhs_dilation]
    padding = [(0, 0, 0), (0, 0, 0), *zip(window.low, window.high, interior, strict=True)]
    x = lax.pad(x, jnp.zeros((), x.dtype), padding)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, window.rhs_dilation, strict=True)]
    last = [(n - span) // s * s for n, span, s in zip(x.shape[2:], spans, window.strides, strict=True)]
    taps: list[jax.Array] = []
    for tap in product(*map(range, kernel)):
        starts = [t * d for t, d in zip(tap, window.rhs_dilation, strict=True)]
        limits = [a + b + 1 for a, b in zip(starts, last, strict=True)]
        taps.append(lax.slice(x, (0, 0, *starts), (*x.shape[:2], *limits), (1, 1, *window.strides)))
    return taps


def _depthwise(x: jax.Array, w: jax.Array, window: ConvWindow, groups: int) -> jax.Array:
    """Groups of one input or one output feature, as shifted products: [N, groups, inputs, outputs, …]."""
    inputs, outputs = w.shape[1], w.shape[0] // groups
    x, w = x.astype(_accumulator(x)), w.astype(_accumulator(w))
    taps = _taps(x, w.shape[2:], window)
    positions = taps[0].shape[2:]
    weights = jnp.swapaxes(w.reshape(groups, outputs, inputs, len(taps)), 1, 2)
    weights = weights.reshape(groups, inputs, outputs, *(1 for _ in positions), len(taps))
    products = (tap.reshape(x.shape[0], groups, inputs, 1, *positions) * weights[..., i] for i, tap in enumerate(taps))
    return reduce(add, products).sum(2).reshape(x.shape[0], groups * outputs, *positions)


def _in_two_dimensions(x: jax.Array, w: jax.Array, window: ConvWindow, groups: int, precision: str) -> jax.Array:
    """A 3-D convolution in two dimensions: positions of the first become batch, its window becomes features."""
    first = ConvWindow(
        *((v[0], 0, 0) if name in ("low", "high") else (v[0], 1, 1) for name, v in window._asdict().items())
    )
    slabs = jnp.stack(_taps(x, (w.shape[2], 1, 1), first), 2)
    batch, features, depth, positions, *spatial = slabs.shape
    slabs = slabs.transpose(0, 3, 1, 2, 4, 5).reshape(batch * positions, features * depth, *spatial)
    kernel = w.reshape(w.shape[0], w.shape[1] * depth, *w.shape[3:])
    result = _plain(slabs, kernel, ConvWindow(*(v[1:] for v in window)), groups, precision)
    return result.reshape(batch, positions, *result.shape[1:]).transpose(0, 2, 1, 3, 4)


def _weight_gradient_on_cpu(
    x: jax.Array, grad: jax.Array, window: ConvWindow, groups: int, precision: str
) -> jax.Array:
    batch, inputs, outputs = x.shape[0], x.shape[1] // groups, grad.shape[1] // groups
    spans = [(n - 1) * d + 1 for n, d in zip(grad.shape[2:], window.rhs_dilation, strict=True)]
    sizes = zip(x.shape[2:], window.low, window.high, spans, window.strides, strict=True)
    kernel = [(n + low + high - span) // s + 1 for n, low, high, span, s in sizes]
    if groups > 1 and inputs == 1 and prod(kernel) <= TAPS:
        x, grad = x.astype(_accumulator(x)), grad.astype(_accumulator(grad))
        wide = grad.reshape(batch, groups, outputs, *grad.shape[2:])
        # The elements of x that one element of the kernel multiplies: strides and dilation of the window are swapped.
        swapped = window._replace(strides=window.rhs_dilation, rhs_dilation=window.strides)
        taps = [tap[:, :, None] for tap in _taps(x, kernel, swapped)]
        sums = [(tap * wide).sum((0, *range(3, wide.ndim))) for tap in taps]
        return jnp.stack(sums, -1).reshape(groups * outputs, 1, *kernel)
    if 1 < groups <= SPLIT:
        pairs = zip(jnp.split(x, groups, 1), jnp.split(grad, groups, 1), strict=True)
        return jnp.concatenate([_weight_gradient_on_cpu(*pair, window, 1, precision) for pair in pairs])
    # Features become the batch, and the batch becomes features, grouped by group.
    images = x.reshape(batch, groups, inputs, *x.shape[2:]).swapaxes(0, 2).reshape(inputs, groups * batch, *x.shape[2:])
    kernels = jnp.moveaxis(grad.reshape(batch, groups, outputs, *grad.shape[2:]), 0, 2)
    kernels = kernels.reshape(groups * outputs, batch, *grad.shape[2:])
    convolve = _in_two_dimensions if len(kernel) == 3 else _plain
    return convolve(images, kernels, window, groups, precision).swapaxes(0, 1)
