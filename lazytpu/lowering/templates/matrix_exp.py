"""The matrix exponential, by a Taylor series and repeated squaring: it needs only matrix products."""

from __future__ import annotations

from math import factorial

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates.registry import template

BLOCK = 5  # the series is a polynomial in a^5, whose coefficients are polynomials in a
DEGREE = 4 * BLOCK - 1
# The norm up to which a series of DEGREE is exact to the dtype: the rest is below x^20 / 20!.
RADIUS = {"float32": 3.0, "float64": 1.0}


@template("matrix_exp")
def matrix_exp(a: jax.Array) -> jax.Array:
    """exp(a) = exp(a / 2^s)^(2^s), with an s for each matrix, in the dtype of a (f32 or wider)."""
    norm = jnp.max(jnp.sum(jnp.abs(a), -2), -1)
    squarings = jnp.ceil(jnp.log2(norm / RADIUS[norm.dtype.name]))
    squarings = jnp.where(jnp.isfinite(squarings), jnp.maximum(squarings, 0), 0).astype(jnp.int32)
    times = squarings[..., None, None]
    result = _series(a * jnp.exp2(-times.astype(norm.dtype)).astype(a.dtype))

    def square(i: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.where(i < times, _product(x, x), x)

    return jax.lax.fori_loop(0, jnp.max(squarings), square, result)


def _series(a: jax.Array) -> jax.Array:
    powers = [jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape), a]
    while len(powers) <= BLOCK:
        powers.append(_product(powers[-1], a))
    partial_sums = [
        sum((powers[i] / factorial(start + i) for i in range(BLOCK)), jnp.zeros_like(a))
        for start in range(0, DEGREE + 1, BLOCK)
    ]
    result = partial_sums.pop()
    while partial_sums:
        result = partial_sums.pop() + _product(powers[BLOCK], result)
    return result


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)
