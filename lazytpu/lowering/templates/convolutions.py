"""Convolutions in groups or of three dimensions, as each platform computes them fast.

XLA:TPU takes them as they are. XLA:CPU has fast kernels for one group of one or two dimensions, and plain loops for the
rest, so there

* a depthwise convolution is a sum of shifted products, which fuse: 16 images of 64 x 16 x 16, 3x3, f32, on 2 cores
  take 0.10 ms instead of 7.4, their input gradient 0.10 instead of 7.7 (with stride 2 0.4 instead of 92), and their
  weight gradient 0.5 instead of 3.4 (with two outputs a group 1.1 instead of 2450);
* a few groups are that many convolutions: 4 groups take 1.0 ms instead of 3.3, their weight gradient 1.1 instead of
  140;
* the weight gradient of many groups is a convolution in feature groups, not in batch groups: 2.6 ms instead of 920 for
  16 groups;
* three dimensions are two, with the first one's window among the features: 4 x 16 x 16^3, 3x3x3, takes 3.0 ms instead
  of 16, its gradients 2.7 and 4.3 instead of 12 and 21 (with stride 2 0.7 and 0.9 instead of 104 and 8.6).

On the TPU (libtpu's estimates for v6e) 32 x 128 x 28 x 28 as shifted products take up to twice the time of its own
depthwise convolution, and 32 convolutions four times that of 32 groups.

All functions return f32 for f16 and bf16.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lazytpu.lowering.templates.registry import template

TAPS = 64  # a depthwise window of more elements is not unrolled
SPLIT = 8  # groups up to this many are convolved one by one

Ints = Sequence[int]


@template("convolution")
def convolution(
    x: jax.Array,
    w: jax.Array,
    *,
    strides: Ints,
    low: Ints,
    high: Ints,
    dilation: Ints,
    groups: int,
    precision: str,
) -> jax.Array:
    """x [N, C, …] and w [O, C / groups, …] to [N, O, …]."""
    ones = (1,) * len(strides)
    return _by_platform(x, w, strides, low, high, ones, dilation, groups, precision)


@template("convolution_input_gradient")
def convolution_input_gradient(
    grad: jax.Array,
    w: jax.Array,
    *,
    strides: Ints,
    low: Ints,
    high: Ints,
    dilation: Ints,
    groups: int,
    precision: str,
) -> jax.Array:
    """The gradient of x from that of `convolution`'s result; with `high` the window has just the places of `grad`."""
    kernel = w.shape[2:]
    flipped = lax.rev(w, tuple(range(2, w.ndim))).reshape(groups, w.shape[0] // groups, *w.shape[1:])
    swapped = jnp.swapaxes(flipped, 1, 2).reshape(groups * w.shape[1], w.shape[0] // groups, *kernel)
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    low, high = ([r - p for r, p in zip(reach, padding, strict=True)] for padding in (low, high))
    ones = (1,) * len(strides)
    return _by_platform(grad, swapped, ones, low, high, strides, dilation, groups, precision)


@template("convolution_weight_gradient")
def convolution_weight_gradient(
    grad: jax.Array,
    x: jax.Array,
    *,
    strides: Ints,
    low: Ints,
    high: Ints,
    dilation: Ints,
    groups: int,
    precision: str,
) -> jax.Array:
    """The gradient of w from that of `convolution`'s result, convolved over x with the batch as features."""
    parameters = (strides, low, high, dilation, groups, precision)
    return lax.platform_dependent(
        grad, x, cpu=partial(_cpu_weight_gradient, *parameters), default=partial(_weight_gradient, *parameters)
    )


def _by_platform(x: jax.Array, w: jax.Array, *parameters: Any) -> jax.Array:
    return lax.platform_dependent(x, w, cpu=partial(_on_cpu, *parameters), default=partial(_plain, *parameters))


def _accumulator(x: jax.Array) -> Any:
    return jnp.float32 if x.dtype in (jnp.float16, jnp.bfloat16) else x.dtype


def _plain(
    strides: Ints,
    low: Ints,
    high: Ints,
    lhs_dilation: Ints,
    rhs_dilation: Ints,
    groups: int,
    precision: str,
    x: jax.Array,
    w: jax.Array,
) -> jax.Array:
    """XLA's own."""
    spatial = "012"[: len(strides)]
    return lax.conv_general_dilated(
        x,
        w,
        strides,
        list(zip(low, high, strict=True)),
        lhs_dilation,
        rhs_dilation,
        ("NC" + spatial, "OI" + spatial, "NC" + spatial),
        groups,
        precision=precision,
        preferred_element_type=_accumulator(x),
    )


def _on_cpu(
    strides: Ints,
    low: Ints,
    high: Ints,
    lhs_dilation: Ints,
    rhs_dilation: Ints,
    groups: int,
    precision: str,
    x: jax.Array,
    w: jax.Array,
) -> jax.Array:
    window = (strides, low, high, lhs_dilation, rhs_dilation)
    taken, made = w.shape[1], w.shape[0] // groups
    if groups > 1 and min(taken, made) == 1 and prod(w.shape[2:]) <= TAPS:
        return _depthwise(*window, groups, x, w)
    if 1 < groups <= SPLIT:
        pairs = zip(jnp.split(x, groups, 1), jnp.split(w, groups), strict=True)
        return jnp.concatenate([_on_cpu(*window, 1, precision, *pair) for pair in pairs], 1)
    if len(strides) == 3:
        return _in_two_dimensions(*window, groups, precision, x, w)
    return _plain(*window, groups, precision, x, w)


def _padded(x: jax.Array, low: Ints, high: Ints, dilation: Ints) -> jax.Array:
    """x [N, C, …] with 0 around and between the elements of the dimensions after the first two."""
    interior = [d - 1 for d in dilation]
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *zip(low, high, interior, strict=True)])


def _taps(x: jax.Array, kernel: Ints, strides: Ints, dilation: Ints) -> list[jax.Array]:
    """For each element of the kernel, row-major, the elements of x that it meets, [N, C, places…]."""
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    last = [(n - span) // s * s for n, span, s in zip(x.shape[2:], spans, strides, strict=True)]
    found: list[jax.Array] = []
    for tap in product(*map(range, kernel)):
        starts = [t * d for t, d in zip(tap, dilation, strict=True)]
        limits = [a + b + 1 for a, b in zip(starts, last, strict=True)]
        found.append(lax.slice(x, (0, 0, *starts), (*x.shape[:2], *limits), (1, 1, *strides)))
    return found


def _depthwise(
    strides: Ints,
    low: Ints,
    high: Ints,
    lhs_dilation: Ints,
    rhs_dilation: Ints,
    groups: int,
    x: jax.Array,
    w: jax.Array,
) -> jax.Array:
    """Groups that take one feature, or make one: shifted products, [N, groups, taken, made, …]."""
    taken, made, kernel = w.shape[1], w.shape[0] // groups, w.shape[2:]
    x, w = x.astype(_accumulator(x)), w.astype(_accumulator(w))
    taps = _taps(_padded(x, low, high, lhs_dilation), kernel, strides, rhs_dilation)
    weights = jnp.swapaxes(w.reshape(groups, made, taken, len(taps)), 1, 2)
    places = taps[0].shape[2:]
    weights = weights.reshape(groups, taken, made, *(1 for _ in places), len(taps))
    shifted = [tap.reshape(x.shape[0], groups, taken, 1, *places) for tap in taps]
    total = shifted[0] * weights[..., 0]
    for i in range(1, len(taps)):
        total = total + shifted[i] * weights[..., i]
    return total.sum(2).reshape(x.shape[0], groups * made, *places)


def _in_two_dimensions(
    strides: Ints,
    low: Ints,
    high: Ints,
    lhs_dilation: Ints,
    rhs_dilation: Ints,
    groups: int,
    precision: str,
    x: jax.Array,
    w: jax.Array,
) -> jax.Array:
    """The first dimension's places join the batch, its window the features."""
    none = (0, 0)
    x = _padded(x, (low[0], *none), (high[0], *none), (lhs_dilation[0], 1, 1))
    slabs = jnp.stack(_taps(x, (w.shape[2], 1, 1), (strides[0], 1, 1), (rhs_dilation[0], 1, 1)), 2)
    batch, features, window, places, *rest = slabs.shape
    slabs = slabs.transpose(0, 3, 1, 2, 4, 5).reshape(batch * places, features * window, *rest)
    kernel = w.reshape(w.shape[0], w.shape[1] * window, *w.shape[3:])
    flat = (v[1:] for v in (strides, low, high, lhs_dilation, rhs_dilation))
    result = _plain(*flat, groups, precision, slabs, kernel)
    return result.reshape(batch, places, *result.shape[1:]).transpose(0, 2, 1, 3, 4)


def _weight_gradient(
    strides: Ints, low: Ints, high: Ints, dilation: Ints, groups: int, precision: str, grad: jax.Array, x: jax.Array
) -> jax.Array:
    """In batch groups, as `jax.grad` has it."""
    spatial = "012"[: len(strides)]
    return lax.conv_general_dilated(
        x,
        grad,
        dilation,
        list(zip(low, high, strict=True)),
        rhs_dilation=strides,
        dimension_numbers=("CN" + spatial, "IO" + spatial, "CN" + spatial),
        batch_group_count=groups,
        precision=precision,
        preferred_element_type=_accumulator(x),
    )


def _cpu_weight_gradient(
    strides: Ints, low: Ints, high: Ints, dilation: Ints, groups: int, precision: str, grad: jax.Array, x: jax.Array
) -> jax.Array:
    taken, made, batch, spatial = x.shape[1] // groups, grad.shape[1] // groups, x.shape[0], grad.shape[2:]
    ones = (1,) * len(strides)
    spans = [(n - 1) * s + 1 for n, s in zip(spatial, strides, strict=True)]
    sizes = zip(x.shape[2:], low, high, spans, dilation, strict=True)
    kernel = [(n + below + above - span) // d + 1 for n, below, above, span, d in sizes]
    if groups > 1 and taken == 1 and prod(kernel) <= TAPS:
        x, grad = (v.astype(_accumulator(v)) for v in (x, grad))
        taps = _taps(_padded(x, low, high, ones), kernel, strides, dilation)
        wide = grad.reshape(batch, groups, made, *spatial)
        dims = (0, *range(3, wide.ndim))
        sums = [(tap[:, :, None] * wide).sum(dims) for tap in taps]
        return jnp.stack(sums, -1).reshape(groups * made, 1, *kernel)
    if 1 < groups <= SPLIT:
        pairs = zip(jnp.split(grad, groups, 1), jnp.split(x, groups, 1), strict=True)
        parts = [_cpu_weight_gradient(strides, low, high, dilation, 1, precision, *pair) for pair in pairs]
        return jnp.concatenate(parts)
    features = jnp.moveaxis(x.reshape(batch, groups, taken, *x.shape[2:]), 2, 0)
    kernels = jnp.moveaxis(grad.reshape(batch, groups, made, *spatial), 0, 2)
    convolve = _in_two_dimensions if len(strides) == 3 else _plain
    result = convolve(
        dilation,
        low,
        high,
        ones,
        strides,
        groups,
        precision,
        jnp.swapaxes(features, 1, 2).reshape(taken, groups * batch, *x.shape[2:]),
        kernels.reshape(groups * made, batch, *spatial),
    )
    return jnp.swapaxes(result, 0, 1)
