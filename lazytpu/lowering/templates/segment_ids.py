"""The ids of segments of packed sequences as the attention kernel compares them: i32, with numbers left over for
padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lazytpu.ir.attention_work import UNSEEN
from lazytpu.lowering.templates.registry import template


@template("segment_ids")
def segment_ids(of_query: jax.Array, of_key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For integers of queries, [batch, L], and of keys, [batch, S], ids in i32 that are equal where the integers are:
    the integers themselves, or, where one does not fit, the place of the first equal key. None is `NO_SEGMENT` or
    `UNSEEN`."""
    if of_query.dtype.itemsize < 4:
        return of_query.astype(jnp.int32), of_key.astype(jnp.int32)
    greatest = jnp.asarray((1 << 31) - 1, of_key.dtype)
    fits = [x <= greatest for x in (of_query, of_key)]
    if jnp.issubdtype(of_key.dtype, jnp.signedinteger):
        fits += [x > UNSEEN for x in (of_query, of_key)]

    def as_they_are() -> tuple[jax.Array, jax.Array]:
        return of_query.astype(jnp.int32), of_key.astype(jnp.int32)

    def places() -> tuple[jax.Array, jax.Array]:  # a sort would take libtpu half a minute to compile
        count = of_key.shape[1]
        place = jax.lax.broadcasted_iota(jnp.int32, (1, 1, count), 2)

        def first(x: jax.Array) -> jax.Array:
            return jnp.where(x[:, :, None] == of_key[:, None], place, count).min(2)

        return first(of_query), first(of_key)

    return jax.lax.cond(jnp.all(jnp.array([x.all() for x in fits])), as_they_are, places)
