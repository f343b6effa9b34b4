"""Searching and ordering: the k largest elements, insertion points in sorted rows, and the order of rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates.registry import template


@template("top_k")
def top_k(x: jax.Array, *, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest of each row of f32 [..., n], largest first, and their i32 indices."""
    values, indices = jax.lax.top_k(x, k)
    return values, indices


@template("searchsorted")
def searchsorted(
    sequence: jax.Array, values: jax.Array, length: jax.Array | None = None, *, side: str, wide: bool
) -> jax.Array:
    """Insertion points of `values` [..., m] in the sorted rows of `sequence` [..., n], or of values of any shape in one
    row [n]; of a padded row only the first `length` elements count."""
    size = sequence.shape[-1]
    if size == 0:
        return jnp.zeros(values.shape, jnp.int64 if wide else jnp.int32)

    def search(row: jax.Array, of: jax.Array) -> jax.Array:
        # The comparisons of torch's binary search, in its order: they place NaN, and decide in a row that ends in NaN.
        def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            start, end = bounds
            middle = start + (end - start) // 2
            element = row.at[middle].get(mode="clip")
            after = (start < end) & ~(element > of if side == "right" else element >= of)
            return jnp.where(after, middle + 1, start), jnp.where(after, end, middle)

        start = jnp.zeros(of.shape, jnp.int32)
        end = jnp.full_like(start, size if length is None else length)
        return jax.lax.fori_loop(0, size.bit_length(), halve, (start, end))[0]

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
