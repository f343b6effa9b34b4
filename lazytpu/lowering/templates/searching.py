"""Finding elements: the k largest, and places in sorted rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates.registry import template

COMPARED = 64  # rows up to this long are compared with every value; longer ones are searched in halves


@template("top_k")
def top_k(x: jax.Array, *, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest of each row of f32 [..., n], largest first, and their i32 indices."""
    values, indices = jax.lax.top_k(x, k)
    return values, indices


@template("searchsorted")
def searchsorted(sequence: jax.Array, values: jax.Array, *, side: str, wide: bool) -> jax.Array:
    """Insertion points of `values` [..., m] in the sorted rows of `sequence` [..., n], or of any values in one row
    [n]."""
    method = "compare_all" if sequence.shape[-1] <= COMPARED else "scan"

    def search(row: jax.Array, of: jax.Array) -> jax.Array:
        return jnp.searchsorted(row, of, side=side, method=method)

    if sequence.ndim == 1:
        found = search(sequence, values)
    else:
        rows = sequence.reshape(-1, sequence.shape[-1])
        found = jax.vmap(search)(rows, values.reshape(-1, values.shape[-1])).reshape(values.shape)
    return found.astype(jnp.int64 if wide else jnp.int32)
