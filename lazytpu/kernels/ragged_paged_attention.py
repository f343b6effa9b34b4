"""Attention of sequences whose keys and values lie in pages, as servers of language models keep them: on a TPU by jax's
Pallas kernel, elsewhere, and for sizes that the kernel does not support, by a loop of XLA's ops.

One call serves sequences that are at their prompt and others that are at their next token: the queries of all sequences
follow each other, and each sequence has the pages of its keys and values in a row of a table
(https://arxiv.org/abs/2309.06180).
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention as kernel
from jax.extend import core

from lazytpu.ir.attention_work import LANES
from lazytpu.kernels.jaxprs import rewritten
from lazytpu.kernels.kernel import CustomKernel

TILE = 64
"The most queries in a step of the loop, or in a block of the kernel."
KEYS = 512
"The keys in a block of the kernel."
VECTOR_MEMORY = 64 << 20
"Bytes of vector memory that the kernel may use, half of a chip's."


def _unfit(q: jax.Array, pages: jax.Array) -> bool:
    """Whether the kernel does not support the sizes or dtypes."""
    packing = 4 // pages.dtype.itemsize
    rows, odd = divmod(pages.shape[2], packing)
    tiled = not odd and (rows in (1, 2, 4, 8) or rows % 8 == 0)
    return not tiled or q.shape[2] % LANES != 0 or q.dtype not in (jnp.bfloat16, jnp.float32)


def _by_kernel(q: jax.Array, pages: jax.Array, *indices: jax.Array, **settings: Any) -> jax.Array:
    page, (sequences, most) = pages.shape[1], indices[1].shape
    tokens, heads, width = q.shape
    blocks = {
        "num_queries_per_block": min(tokens, TILE),
        "num_kv_pages_per_block": min(most, max(1, KEYS // page)),
        "vmem_limit_bytes": VECTOR_MEMORY,
    }

    def call(*operands: jax.Array) -> jax.Array:
        return kernel(*operands, **settings, **blocks)

    # The most that can be: all sequences have all of their pages, and the tokens are shared out among them.
    scores = tokens * heads * most * page
    read = sequences * most * page * pages.shape[2] * width * pages.dtype.itemsize
    cost = pallas.CostEstimate(4 * scores * width, scores, read + 2 * q.size * q.dtype.itemsize)
    closed = rewritten(jax.make_jaxpr(call)(q, pages, *indices), lambda _: {"cost_estimate": cost})
    (output,) = core.jaxpr_as_fun(closed)(q, pages, *indices)
    return output


def _by_loop(
    q: jax.Array,
    pages: jax.Array,
    lengths: jax.Array,
    table: jax.Array,
    ends: jax.Array,
    count: jax.Array,
    *,
    sm_scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    k_scale: float | None,
    v_scale: float | None,
) -> jax.Array:
    tokens, heads, width = q.shape
    shared, tile = pages.shape[2] // 2, min(tokens, TILE)
    group = heads // shared
    padded = jnp.pad(q, [(0, tile), (0, 0), (0, 0)])

    def of_pages(sequence: jax.Array, first: int, scale: float | None) -> jax.Array:
        """Return the keys or the values of a sequence, [keys, heads, width]."""
        x = pages[table[sequence], :, first::2].reshape(-1, shared, width)
        return x.astype(q.dtype) if scale is None else (x.astype(jnp.float32) * scale).astype(q.dtype)

    def sequence_step(sequence: jax.Array, output: jax.Array) -> jax.Array:
        keys, values = of_pages(sequence, 0, k_scale), of_pages(sequence, 1, v_scale)
        start, end = ends[sequence], ends[sequence + 1]
        columns = jnp.arange(len(keys), dtype=jnp.int32)

        def step(i: jax.Array, output: jax.Array) -> jax.Array:
            first = start + i * tile
            rows = first + jnp.arange(tile, dtype=jnp.int32)
            places = (lengths[sequence] - (end - rows))[:, None]
            seen = columns <= places
            if sliding_window is not None:
                seen &= columns > places - sliding_window
            queries = jax.lax.dynamic_slice_in_dim(padded, first, tile).reshape(tile, shared, group, width)
            scores = jnp.einsum("qsgd,ksd->sgqk", queries, keys, preferred_element_type=jnp.float32) * sm_scale
            if soft_cap is not None:
                scores = soft_cap * jnp.tanh(scores / soft_cap)
            weights = jax.nn.softmax(jnp.where(seen, scores, -inf), -1).astype(q.dtype)
            # Pages may hold anything after the end of a sequence, and NaN times 0 is NaN.
            kept = jnp.where((columns < lengths[sequence])[:, None, None], values, 0)
            results = jnp.einsum("sgqk,ksd->qsgd", weights, kept, preferred_element_type=jnp.float32)
            old = jax.lax.dynamic_slice_in_dim(output, first, tile)
            new = jnp.where((rows < end)[:, None, None], results.reshape(old.shape).astype(q.dtype), old)
            return jax.lax.dynamic_update_slice_in_dim(output, new, first, 0)

        return jax.lax.fori_loop(jnp.int32(0), (end - start + tile - 1) // tile, step, output)

    output = jax.lax.fori_loop(jnp.int32(0), count[0], sequence_step, jnp.zeros_like(padded))
    return output[:tokens]


@partial(CustomKernel, name="ragged_paged_attention", padding="tokens _ _, _ _ _ _, _, _ _, _, _ -> tokens _ _")
def ragged_paged_attention(
    queries: jax.Array,
    pages: jax.Array,
    lengths: jax.Array,
    table: jax.Array,
    ends: jax.Array,
    count: jax.Array,
    *,
    scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    key_scale: float | None = None,
    value_scale: float | None = None,
) -> jax.Array:
    """Return the attention, [tokens, heads, width], of the last tokens of sequences to all of their tokens so far.

    Args:
        queries: [tokens, heads, width], one sequence after the other; tokens after the last sequence get zeros.
        pages: keys and values, [pages, page size, 2 * key heads, width]: key and value of a head follow each other.
        lengths: i32 [sequences], the tokens of each sequence so far, those of `queries` included.
        table: i32 [sequences, pages of a sequence], the pages of each sequence in order.
        ends: i32 [sequences + 1], where the queries of each sequence begin, and those of the last one end.
        count: i32 [1], the number of sequences; later rows of `lengths`, `table` and `ends` are not read.
        scale: the factor of the scores.
        sliding_window: the number of last tokens that a token sees; by default it sees all.
        soft_cap: c of c * tanh(scores / c).
        key_scale, value_scale: factors of keys and values that are stored as 8-bit numbers.

    There are no gradients.
    """
    settings = {"sm_scale": scale, "sliding_window": sliding_window, "soft_cap": soft_cap}
    settings |= {"k_scale": key_scale, "v_scale": value_scale}
    operands = (queries, pages, lengths, table, ends, count)
    loop = partial(_by_loop, **settings)
    with jax.default_matmul_precision("default" if queries.dtype.itemsize == 2 else "highest"):
        if _unfit(queries, pages):
            output = loop(*operands)
        else:
            output = jax.lax.platform_dependent(*operands, tpu=partial(_by_kernel, **settings), default=loop)
    is_query = jnp.arange(len(queries), dtype=jnp.int32) < ends[count[0]]
    return jnp.where(is_query[:, None, None], output, 0)
