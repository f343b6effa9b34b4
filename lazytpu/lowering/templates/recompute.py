"""Barriers in front of values that are computed again on purpose: activation checkpointing, and second gathers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from lazytpu.lowering.templates.registry import template


@template("recompute")
def recompute(x: jax.Array, after: jax.Array, ticket: jax.Array) -> jax.Array:
    """x, available after `after` (0-d), and opaque to the compiler, so that values computed from it are recomputed.

    XLA:CPU removes optimization barriers before it merges equal ops (jaxlib 0.10.2: jax.checkpoint saves 4 % of the
    temporaries of 8 layers there, this 80 %). So there x is selected by a condition that always holds, since `ticket`
    is always 0, which only the caller knows.
    """
    return lax.platform_dependent(x, after, ticket, cpu=_opaque, default=_barrier)


@template("read_again")
def read_again(x: jax.Array, after: jax.Array) -> jax.Array:
    """x, available after `after` (0-d), so that values computed from it are computed then. XLA:CPU removes the barrier,
    and may share them with earlier ones."""
    return lax.optimization_barrier((x, after))[0]


def _opaque(x: jax.Array, after: jax.Array, ticket: jax.Array) -> jax.Array:
    return jnp.where((ticket == 0) | (after > 0), x, jnp.zeros((), x.dtype))


def _barrier(x: jax.Array, after: jax.Array, ticket: jax.Array) -> jax.Array:
    return lax.optimization_barrier((x, after))[0]
