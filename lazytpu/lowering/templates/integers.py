"""Number theory on integers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from lazytpu.lowering.templates.registry import template


@template("gcd")
def gcd(x: jax.Array, y: jax.Array) -> jax.Array:
    """The greatest common divisor; gcd(x, 0) = |x|.

    Euclid's algorithm as the CPU runs it (`calc_gcd` in ATen/native/Math.h). It is negative only for the least integer,
    whose magnitude does not exist. `jnp.gcd` orders its numbers, and never ends for that one.
    """
    if jnp.issubdtype(x.dtype, jnp.signedinteger):
        x, y = jnp.abs(x), jnp.abs(y)

    def step(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, b = pair
        ends = a == 0
        return jnp.where(ends, a, lax.rem(b, jnp.where(ends, 1, a))), jnp.where(ends, b, a)

    return lax.while_loop(lambda pair: jnp.any(pair[0] != 0), step, (x, y))[1]
