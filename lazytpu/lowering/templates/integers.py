"""Number theory on integers."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates.registry import template


@template("gcd")
def gcd(x: jax.Array, y: jax.Array) -> jax.Array:
    """The greatest common divisor, never negative; gcd(x, 0) = |x|."""
    return jnp.gcd(x, y)
