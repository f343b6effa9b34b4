"""Cumulative log-sum-exp. On CPUs and GPUs it accumulates in f64, as torch's CPU kernels do.

The gradient is the exponential of differences of such sums, so their absolute errors are its relative ones: in f32, of
100,000 normal numbers of deviation 10, 1.5 % for one element in a hundred, and half of that in f64 (XLA:CPU)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from lazytpu.lowering.templates.registry import template

_WIDER = {jnp.dtype(jnp.float32): jnp.float64, jnp.dtype(jnp.complex64): jnp.complex128}


def _widely(scan: Callable[..., jax.Array], x: jax.Array, dim: int) -> jax.Array:
    """`scan` in the wider dtype, but not on TPUs, which emulate f64, and have no c128."""

    def widely(x: jax.Array) -> jax.Array:
        return scan(x.astype(_WIDER.get(x.dtype, x.dtype)), dim).astype(x.dtype)

    return lax.platform_dependent(x, cpu=widely, cuda=widely, rocm=widely, default=partial(scan, dim=dim))


@template("cumulative_logsumexp")
def cumulative_logsumexp(x: jax.Array, *, dim: int) -> jax.Array:
    """The logarithm of the cumulative sum of e^x along dim."""

    def scan(x: jax.Array, dim: int) -> jax.Array:
        return lax.cumlogsumexp(x, axis=dim)

    return _widely(scan, x, dim)


@template("complex_logcumsumexp")
def complex_logcumsumexp(x: jax.Array, *, dim: int) -> jax.Array:
    """The logarithm of the cumulative sum of e^x along dim, one element after the other. The order decides the phase:
    the imaginary part continues from the larger summand's, without wrapping into (-pi, pi] (`_log_add_exp_helper` in
    ATen/native/cpu/LogAddExp.h)."""
    return _widely(_one_by_one, x, dim)


def _one_by_one(x: jax.Array, dim: int) -> jax.Array:
    def step(total: jax.Array, element: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = _log_add_exp(element, total)
        return total, total

    rows = jnp.moveaxis(x, dim, 0)
    start = jnp.full(rows.shape[1:], -jnp.inf, x.dtype)
    return jnp.moveaxis(lax.scan(step, start, rows)[1], 0, dim)


def _log_add_exp(x: jax.Array, y: jax.Array) -> jax.Array:
    x_is_less, is_nan = x.real < y.real, jnp.isnan(x) | jnp.isnan(y)
    low, high = jnp.where(x_is_less, x, y), jnp.where(x_is_less, y, x)
    difference = low - high
    ratio = jnp.where(jnp.isneginf(difference.real), 0, jnp.exp(difference))
    both_infinite = jnp.isinf(low.real) & (low.real == high.real)
    of_infinite = jnp.where(low.real < 0, low, jnp.log(jnp.exp(low) + jnp.exp(high)))
    result = jnp.where(both_infinite, of_infinite, jnp.log1p(ratio) + high)
    return jnp.where(is_nan, jnp.asarray(complex(jnp.nan, jnp.nan), x.dtype), result)
