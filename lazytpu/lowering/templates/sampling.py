"""Random numbers that take a loop to draw, and their derivatives. A key is two ui32 words."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates.registry import template


@template("binomial")
def binomial(key: jax.Array, count: jax.Array, p: jax.Array) -> jax.Array:
    """Successes of `count` trials of probability p, in the dtype of both (f32 or f64)."""
    keys = jax.random.wrap_key_data(key, impl="threefry2x32")
    return jax.random.binomial(keys, count, p, shape=count.shape, dtype=count.dtype)
