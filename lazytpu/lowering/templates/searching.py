"""Searching and ordering: the k largest elements, insertion points in sorted rows, and the order of rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates.registry import template

COMPARED = 64  # rows up to this length are compared with every value; longer ones get a binary search


@template("top_k")
def top_k(x: jax.Array, *, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest of each row of f32 [..., n], largest first, and their i32 indices."""
    values, indices = jax.lax.top_k(x, k)
    return values, indices


@template("searchsorted")
def searchsorted(sequence: jax.Array, values: jax.Array, *, side: str, wide: bool) -> jax.Array:
    """Insertion points of `values` [..., m] in the sorted rows of `sequence` [..., n], or of values of any shape in one
    row [n]."""
    method = "compare_all" if sequence.shape[-1] <= COMPARED else "scan"

    def search(row: jax.Array, of: jax.Array) -> jax.Array:
        return jnp.searchsorted(row, of, side=side, method=method)

    if sequence.ndim == 1:
        indices = search(sequence, values)
    else:
        rows = sequence.reshape(-1, sequence.shape[-1])
        indices = jax.vmap(search)(rows, values.reshape(-1, values.shape[-1])).reshape(values.shape)
    return indices.astype(jnp.int64 if wide else jnp.int32)


@template("lexicographic_order")
def lexicographic_order(rows: jax.Array) -> jax.Array:
    """The order [n], i64, of a stable lexicographic sort of rows [n, m]."""
    count, columns = rows.shape

    def step(done: jax.Array, order: jax.Array) -> jax.Array:
        column = jax.lax.dynamic_index_in_dim(rows, columns - 1 - done, 1, keepdims=False)
        return jax.lax.sort((column[order], order), num_keys=1, is_stable=True)[1]

    return jax.lax.fori_loop(0, columns, step, jnp.arange(count, dtype=jnp.int32)).astype(jnp.int64)
