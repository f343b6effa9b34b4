"""Products of the groups of a matrix with a matrix each, as in a mixture of experts: on a TPU by jax's Pallas kernels
("megablox", https://arxiv.org/abs/2211.15841), elsewhere by a loop.

The groups are consecutive, and known only at run time by their ends. So the rows are cut into tiles of one size, and
each tile is multiplied once for each group that has rows in it: at most one product more than there are tiles, for each
group but the first. Rows that belong to no group give 0, and are read by no sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm

from lazytpu.ir.attention_work import LANES
from lazytpu.lowering.templates.registry import template

TILES = (8, 128)
"""The fewest and the most rows of a tile of the loop: fewer rows have more products, more rows have more of them
masked."""
BLOCK = 512
"""The most rows and columns of a block of the kernels, of which several of f32 fit into the chip's vector memory."""


def _tile(rows: int, groups: int) -> int:
    """Return the rows of a tile: a power of two near the mean group's."""
    least, most = TILES
    return min(most, max(least, 1 << (rows // groups).bit_length()))


def _padded(x: jax.Array, multiple: int) -> jax.Array:
    """Return x with zeros after its rows, up to a multiple."""
    missing = -x.shape[0] % multiple
    return jnp.pad(x, [(0, missing), *[(0, 0)] * (x.ndim - 1)]) if missing else x


def _over_tiles(ends: jax.Array, tile: int, carried: jax.Array, step: Callable[..., jax.Array]) -> jax.Array:
    """Return `step(carried, group, start of the tile, is_member [tile, 1])` applied for each group and each tile that
    has rows of it."""
    starts = jnp.concatenate([jnp.zeros(1, ends.dtype), ends[:-1]])
    first = starts // tile
    counts = jnp.where(ends > starts, (ends - 1) // tile - first + 1, 0)
    after = jnp.cumsum(counts)

    def body(at: jax.Array, carried: jax.Array) -> jax.Array:
        group = jnp.searchsorted(after, at, side="right")
        start = (first[group] + at - (after - counts)[group]) * tile
        rows = start + jnp.arange(tile, dtype=ends.dtype)
        return step(carried, group, start, ((rows >= starts[group]) & (rows < ends[group]))[:, None])

    return jax.lax.fori_loop(jnp.zeros((), after.dtype), after[-1], body, carried)


def rows_in_tiles(x: jax.Array, weights: jax.Array, ends: jax.Array) -> jax.Array:
    """Return [M, N], each row of x [M, K] times the matrix of its group in `weights` [G, K, N]."""
    tile = _tile(x.shape[0], len(ends))
    padded, width = _padded(x, tile), weights.shape[2]

    def step(result: jax.Array, group: jax.Array, start: jax.Array, is_member: jax.Array) -> jax.Array:
        rows = jax.lax.dynamic_slice_in_dim(padded, start, tile)
        product = jnp.dot(rows, weights[group], preferred_element_type=jnp.float32).astype(x.dtype)
        others = jax.lax.dynamic_slice_in_dim(result, start, tile)
        return jax.lax.dynamic_update_slice_in_dim(result, jnp.where(is_member, product, others), start, 0)

    return _over_tiles(ends, tile, jnp.zeros((len(padded), width), x.dtype), step)[: len(x)]


def sums_in_tiles(x: jax.Array, y: jax.Array, ends: jax.Array) -> jax.Array:
    """Return [G, P, Q], for each group the product of its rows of x [K, P], transposed, and of y [K, Q]."""
    tile = _tile(x.shape[0], len(ends))
    left, right = _padded(x, tile), _padded(y, tile)

    def step(result: jax.Array, group: jax.Array, start: jax.Array, is_member: jax.Array) -> jax.Array:
        rows = [jax.lax.dynamic_slice_in_dim(each, start, tile) for each in (left, right)]
        members = [jnp.where(is_member, each, 0) for each in rows]
        return result.at[group].add(jnp.einsum("kp,kq->pq", *members, preferred_element_type=jnp.float32))

    result = jnp.zeros((len(ends), x.shape[1], y.shape[1]), jnp.float32)
    return _over_tiles(ends, tile, result, step).astype(x.dtype)


def _blocks(rows: int, *widths: int) -> tuple[int, ...]:
    """Return the sizes of a block in rows and columns."""
    return tuple(min(BLOCK, -(-size // LANES) * LANES) for size in (rows, *widths))


def _for_kernels(*operands: jax.Array) -> list[jax.Array]:
    """Return operands as the matrix unit reads them: it knows no f16."""
    return [x.astype(jnp.float32) if x.dtype == jnp.float16 else x for x in operands]


def _sizes(ends: jax.Array) -> jax.Array:
    return jnp.diff(ends, prepend=0)


def rows_by_kernel(x: jax.Array, weights: jax.Array, ends: jax.Array, *, interpret: bool = False) -> jax.Array:
    """The results of `rows_in_tiles`, by megablox."""
    blocks = _blocks(x.shape[0], *weights.shape[1:])
    rows, matrices = _for_kernels(_padded(x, blocks[0]), weights)
    result = gmm(rows, matrices, _sizes(ends), x.dtype, blocks, interpret=interpret)[: len(x)]
    return jnp.where((jnp.arange(len(x)) < ends[-1])[:, None], result, 0)  # the kernel leaves other rows unwritten


def sums_by_kernel(x: jax.Array, y: jax.Array, ends: jax.Array, *, interpret: bool = False) -> jax.Array:
    """The results of `sums_in_tiles`, by megablox."""
    blocks = _blocks(x.shape[0], x.shape[1], y.shape[1])
    left, right = _for_kernels(_padded(x, blocks[0]), _padded(y, blocks[0]))
    return tgmm(left.swapaxes(0, 1), right, _sizes(ends), x.dtype, blocks, interpret=interpret)


def _by_platform(kernel: Any, default: Any, operands: tuple[jax.Array, ...], precision: str) -> jax.Array:
    # Mosaic rejects any precision but the default for 16-bit operands.
    with jax.default_matmul_precision("default" if operands[0].dtype.itemsize == 2 else precision):
        return jax.lax.platform_dependent(*operands, tpu=kernel, default=default)


@template("grouped_rows", x64=False)
def grouped_rows(*operands: jax.Array, precision: str) -> jax.Array:
    """Products, [M, N], of the rows [M, K] of each group with a matrix of [G, K, N]. Groups end at i32 [G], which
    ascend and are at most M."""
    return _by_platform(rows_by_kernel, rows_in_tiles, operands, precision)


@template("grouped_sums", x64=False)
def grouped_sums(*operands: jax.Array, precision: str) -> jax.Array:
    """Products, [G, P, Q], of the rows [K, P] and [K, Q] of each group. Groups end at i32 [G], which ascend and are at
    most K."""
    return _by_platform(sums_by_kernel, sums_in_tiles, operands, precision)
