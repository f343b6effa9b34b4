"""Reductions over consecutive segments of a dimension, with run-time bounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates.registry import template


def _members(offsets: jax.Array, size: int) -> jax.Array:
    """The segment of each of `size` elements, [O, N], from ascending offsets [O, K + 1]; K for elements in none."""
    rows, bounds = offsets.shape
    begun = jnp.zeros((rows, size + 1), jnp.int32)
    begun = begun.at[jnp.arange(rows)[:, None], jnp.clip(offsets, 0, size).astype(jnp.int32)].add(1)
    member = jnp.cumsum(begun, 1)[:, :size] - 1
    return jnp.where(member < 0, bounds - 1, member)


def _folded(kind: str, x: jax.Array, member: jax.Array, start: jax.Array) -> jax.Array:
    """`start` [O, K, I] with the elements of x [O, N, I] reduced into their segments."""
    at = start.at[jnp.arange(x.shape[0])[:, None], member]
    fold = {"sum": at.add, "mean": at.add, "prod": at.multiply, "max": at.max, "min": at.min}[kind]
    return fold(x, mode="drop")


def _of_member(x: jax.Array, member: jax.Array) -> jax.Array:
    """For each element, [O, N, I], the value of its segment in x [O, K, I]."""
    return x[jnp.arange(x.shape[0])[:, None], jnp.minimum(member, x.shape[1] - 1)]


def _wide(x: jax.Array) -> jax.Array:
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


NEUTRAL = {"sum": 0, "mean": 0, "prod": 1, "max": -jnp.inf, "min": jnp.inf}


@template("segment_reduce")
def segment_reduce(data: jax.Array, offsets: jax.Array, *initial: jax.Array, kind: str) -> jax.Array:
    """Sums, means, products or extremes, [O, K, I], of the segments of data [O, N, I]. An empty segment gives
    `initial`, by default the identity of the reduction, or NaN for a mean."""
    x = _wide(data)
    rows, segments = offsets.shape[0], offsets.shape[1] - 1
    value = initial[0].astype(x.dtype) if initial else jnp.asarray(NEUTRAL[kind], x.dtype)
    start = jnp.broadcast_to(value, (rows, segments, x.shape[2]))
    result = _folded(kind, x, _members(offsets, x.shape[1]), start)
    if kind == "mean":
        lengths = jnp.diff(offsets, axis=1)[:, :, None]
        empty = result if initial else jnp.full_like(result, jnp.nan)
        result = jnp.where(lengths == 0, empty, result / jnp.maximum(lengths, 1).astype(x.dtype))
    return result.astype(data.dtype)


@template("segment_reduce_backward")
def segment_reduce_backward(
    grad: jax.Array, output: jax.Array, data: jax.Array, offsets: jax.Array, *initial: jax.Array, kind: str
) -> jax.Array:
    """The gradient of data [O, N, I], 0 outside all segments, as in SegmentReduce.cpp: each of several equal extremes
    gets the gradient, divided by their number only if it is positive."""
    x = _wide(data)
    member = _members(offsets, x.shape[1])
    slope = _of_member(_wide(grad), member)
    if kind == "mean":
        lengths = jnp.diff(offsets, axis=1)[:, :, None]
        slope = slope / _of_member(jnp.maximum(lengths, 1).astype(x.dtype), member)
    elif kind in ("max", "min"):
        hit = jnp.isnan(x) | (x == _of_member(_wide(output), member))
        count = _of_member(_count(hit, member, output), member)
        slope = jnp.where(hit, slope, 0)
        slope = jnp.where((count > 1) & (slope > 0), slope / jnp.maximum(count, 1), slope)
    elif kind == "prod":
        slope = slope * _others(x, member, output, initial)
    inside = (member < offsets.shape[1] - 1)[:, :, None]
    return jnp.where(inside, slope, 0).astype(data.dtype)


def _count(true: jax.Array, member: jax.Array, like: jax.Array) -> jax.Array:
    return _folded("sum", true.astype(jnp.int32), member, jnp.zeros(like.shape, jnp.int32))


def _others(x: jax.Array, member: jax.Array, output: jax.Array, initial: tuple[jax.Array, ...]) -> jax.Array:
    """For each element, [O, N, I], the product of all other elements of its segment."""
    zero, missing = x == 0, jnp.isnan(x)
    value = initial[0].astype(x.dtype) if initial else jnp.ones((), x.dtype)
    plain = _folded("prod", jnp.where(zero | missing, 1, x), member, jnp.broadcast_to(value, output.shape))
    other_zeros = _of_member(_count(zero, member, output), member) > zero
    other_missing = _of_member(_count(missing, member, output), member) > missing
    product = _of_member(plain, member) * jnp.where(other_zeros, 0, 1) * jnp.where(other_missing, jnp.nan, 1)
    return jnp.where(zero | missing, product, _of_member(_wide(output), member) / x)
