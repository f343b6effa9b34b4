"""Scans over complex numbers, whose order decides the phase."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from lazytpu.lowering.templates.registry import template


@template("complex_logcumsumexp")
def complex_logcumsumexp(x: jax.Array, *, dim: int) -> jax.Array:
    """log of the running sum of e^x along dim, one element after the other: the imaginary part goes on from that of the
    larger summand and is not wrapped into (-pi, pi] (`_log_add_exp_helper` in ATen/native/cpu/LogAddExp.h)."""

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
