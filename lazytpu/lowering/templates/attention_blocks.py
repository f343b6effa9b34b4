"""Attention by blocks of queries of one key head, in XLA ops, for attention that the kernel does not support.

It supports a float bias, dropout, masks per head, any length, width and float dtype, and all results of a query without
keys. The scores of a block, [query heads of the key head, rows, S] in f32, take at most `BLOCK` bytes, so that they
stay in a TPU's vector memory; the backward pass recomputes each block. With P the probabilities of a block and
D = Σ P·(grad·valueᵀ) over the keys, ∂value += Pᵀ·grad and ∂scores = P·(grad·valueᵀ - D).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p

from lazytpu.lowering.templates.registry import template

BLOCK = 16 << 20
"The most bytes of the scores of a block."
ROWS = 512
"The most queries in a block."
HALF = 0xFFFF  # the low 16 bits of a 32-bit word


@dataclass(frozen=True)
class How:
    """The parameters of an attention op, as in lazytpu/ir/attention.py; the query is scaled already."""

    causal: bool = False
    window: int = 0
    precision: str = "highest"
    hidden: str = "zeros"
    added: bool = False


@dataclass(frozen=True)
class Extra:
    """The operands after the value: bias (i1 or float, 4-d), offset (i32), segments and dropout. Segments are the i32
    ids of queries, [batch or 1, L], and of keys, [batch or 1, S], which are equal where a query sees a key. Dropout is
    (the threshold for the upper 24 random bits, below which a score is kept; the factor of kept scores; seed and offset
    as ui32 [2], low word first)."""

    bias: Any = None
    offset: Any = None
    segments: tuple[Any, Any] | None = None
    dropout: tuple[Any, Any, Any, Any] | None = None


@dataclass(frozen=True)
class _Blocks:
    """An attention in `count` blocks, ordered by batch, key head and rows."""

    q: Any  # [batch, kv heads, group, padded L, E]; a group are the query heads of one key head
    k: Any
    v: Any
    extra: Extra
    how: How
    length: int
    rows: int
    stream: Any = None
    "The key of the random stream, two ui32."

    @staticmethod
    def of(q: Any, k: Any, v: Any, extra: Extra, how: How) -> _Blocks:
        batch, heads, length, width = q.shape
        shared, keys = k.shape[1:3]
        fits = BLOCK // max(1, 4 * keys * (heads // shared))
        most = max(8, min(fits, ROWS))
        rows = length if length <= most else -(-length // -(-length // most) // 8) * 8
        grouped = _padded(q, 2, rows).reshape(batch, shared, heads // shared, -1, width)
        if extra.bias is not None and extra.bias.shape[2] > 1:
            extra = replace(extra, bias=_padded(extra.bias, 2, rows))
        if extra.segments is not None:
            extra = replace(extra, segments=(_padded(extra.segments[0], 1, rows), extra.segments[1]))
        stream = None if extra.dropout is None else _stream(*extra.dropout[2:])
        return _Blocks(grouped, k, v, extra, how, length, rows, stream)

    @property
    def count(self) -> int:
        return self.q.shape[0] * self.q.shape[1] * self.blocks

    @property
    def blocks(self) -> int:
        return self.q.shape[3] // self.rows

    def place(self, i: Any) -> tuple[Any, Any, Any]:
        """(batch, key head, first row) of a block."""
        head = i // self.blocks
        return head // self.q.shape[1], head % self.q.shape[1], i % self.blocks * self.rows

    def rows_of(self, x: Any, at: tuple[Any, Any, Any]) -> Any:
        """The block's rows of [batch, kv heads, group, padded L, n]: [group, rows, n]."""
        batch, head, row = at
        sizes = (1, 1, x.shape[2], self.rows, x.shape[4])
        return jax.lax.dynamic_slice(x, (batch, head, 0, row, 0), sizes)[0, 0]

    def begin(self, at: tuple[Any, Any, Any]) -> tuple[Any, ...]:
        """The start indices of the block's part of the bias."""
        batch, head, row = at
        sizes = self.extra.bias.shape
        starts = (batch, head * self.q.shape[2], row)
        return (*(start if size > 1 else 0 for start, size in zip(starts, sizes, strict=False)), 0)

    def bias(self, of: tuple[Any, Any, Any]) -> Any:
        """The block's part of the bias, which broadcasts to [group, rows, S]."""
        bias = self.extra.bias
        *at, row, _ = self.begin(of)
        heads = self.q.shape[2] if bias.shape[1] > 1 else 1
        rows = self.rows if bias.shape[2] > 1 else 1
        # The tiles of a boolean mask have more rows as an argument than here: without this reshape, XLA would retile
        # the whole mask for each block.
        by_block = bias.reshape(*bias.shape[:2], -1, rows, bias.shape[3])
        return jax.lax.dynamic_slice(by_block, (*at, row // rows, 0, 0), (1, heads, 1, rows, bias.shape[3]))[0, :, 0]

    def seen(self, at: tuple[Any, Any, Any]) -> list[Any]:
        """The masks of a block."""
        how, extra, masks = self.how, self.extra, list[Any]()
        shape = (self.rows, self.k.shape[2])
        queries, keys = (jax.lax.broadcasted_iota(jnp.int32, shape, dim) for dim in (0, 1))
        queries = queries + at[2] + (0 if extra.offset is None else extra.offset)
        if how.causal:
            masks.append(queries >= keys)
        if how.window:
            masks.append(queries - how.window < keys)
        if extra.bias is not None and extra.bias.dtype == jnp.bool_:
            masks.append(self.bias(at))
        if extra.segments is not None:
            of_query, of_key = extra.segments
            rows = jax.lax.dynamic_slice(of_query, (at[0] if len(of_query) > 1 else 0, at[2]), (1, self.rows))
            masks.append(rows[0][:, None] == of_key[at[0] if len(of_key) > 1 else 0])
        return masks

    def probabilities(self, at: tuple[Any, Any, Any]) -> Any:
        """The probabilities of a block, [group, rows, S] in f32; zeros for padded rows."""
        extra, how = self.extra, self.how
        scores = self.product("rqe,ke->rqk", self.rows_of(self.q, at), self.k[at[:2]])
        low = jnp.float32(jnp.finfo(jnp.float32).min if how.hidden == "mean" else -inf)
        for seen in self.seen(at):
            scores = jnp.where(seen, scores, low)
        if extra.bias is not None and extra.bias.dtype != jnp.bool_:
            scores = scores + self.bias(at).astype(jnp.float32)
        largest = scores.max(-1, keepdims=True)
        if how.hidden == "zeros":
            largest = jnp.where(largest == -inf, 0, largest)
        exps = jnp.exp(scores - largest)
        total = exps.sum(-1, keepdims=True)
        if how.hidden == "zeros":
            total = jnp.where(total == 0, 1, total)
        if self.length == self.q.shape[3]:
            return exps / total
        rows = at[2] + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        return jnp.where(rows < self.length, exps / total, 0)

    def kept(self, at: tuple[Any, Any, Any]) -> Any:
        """Return the mask of the probabilities that dropout keeps; None without dropout. The bits equal those of
        lazytpu/lowering/random.py for the shape [batch, heads, L, S]. They are computed once, rather than in each
        fusion that uses them."""
        if self.extra.dropout is None:
            return None
        below = self.extra.dropout[0]
        batch, head, row = (jnp.uint32(n) for n in at)
        group, keys = self.q.shape[2], self.k.shape[2]
        shape = (group, self.rows, keys)
        heads, rows = (jax.lax.broadcasted_iota(jnp.uint32, (group, self.rows, 1), dim) for dim in (0, 1))
        first = ((batch * jnp.uint32(self.q.shape[1]) + head) * jnp.uint32(group) + heads) * jnp.uint32(self.length)
        high, low = (jnp.broadcast_to(word, shape) for word in _times(first + row + rows, keys))
        index = low + jax.lax.broadcasted_iota(jnp.uint32, shape, 2)
        high = high + (index < low).astype(jnp.uint32)
        key_low, key_high = (jnp.broadcast_to(word, shape) for word in self.stream)
        words = threefry2x32_p.bind(key_low, key_high, high, index)
        return jax.lax.optimization_barrier(((words[0] ^ words[1]) >> jnp.uint32(8)) < below)

    def dropped(self, x: Any, mask: Any) -> Any:
        """Dropout applied to a tensor of the shape of the scores."""
        dropout = self.extra.dropout
        return x if mask is None or dropout is None else jnp.where(mask, x * dropout[1], 0)

    def product(self, dims: str, x: Any, y: Any) -> Any:
        precision = self.how.precision if x.dtype == jnp.float32 else "default"
        return jnp.einsum(dims, x, y, precision=precision, preferred_element_type=jnp.float32)


def _stream(seed: Any, offset: Any) -> tuple[Any, Any]:
    """The key of the random stream, computed together with the next one: XLA does not fuse scalars on a TPU."""
    high, low, counter, next_counter = (jnp.broadcast_to(x, (2,)) for x in (seed[1], seed[0], offset[1], offset[0]))
    high, low = threefry2x32_p.bind(high, low, counter, next_counter + jnp.arange(2, dtype=jnp.uint32))
    return high[0], low[0]


def _padded(x: Any, dim: int, rows: int) -> Any:
    """x, padded with zeros along `dim` to a multiple of `rows`."""
    missing = -x.shape[dim] % rows
    return jnp.pad(x, [(0, missing if i == dim else 0) for i in range(x.ndim)]) if missing else x


def _times(x: Any, by: int) -> tuple[Any, Any]:
    """(high, low) words of the 64-bit product of a ui32 and a number below 2^32."""
    half, sixteen = jnp.uint32(HALF), jnp.uint32(16)
    high, low, by_high, by_low = x >> sixteen, x & half, jnp.uint32(by >> 16), jnp.uint32(by & HALF)
    middle = high * by_low + ((low * by_low) >> sixteen)
    carry = low * by_high + (middle & half)
    return high * by_high + (middle >> sixteen) + (carry >> sixteen), x * jnp.uint32(by)


def forward(q: Any, k: Any, v: Any, extra: Extra, how: How) -> Any:
    """The output, [batch, heads, L, V]."""
    of = _Blocks.of(q, k, v, extra, how)

    def one(i: Any) -> Any:
        at = of.place(i)
        weights = of.dropped(of.probabilities(at), of.kept(at)).astype(v.dtype)
        return of.product("rqk,kv->rqv", weights, v[at[:2]]).astype(v.dtype)

    return _from_rows(jax.lax.map(one, jnp.arange(of.count)), of, q.shape)


def _from_rows(rows: Any, of: _Blocks, shape: tuple[int, ...]) -> Any:
    """[count, group, rows, n] as [batch, heads, L, n]."""
    rows = rows.reshape(*of.q.shape[:2], of.blocks, *rows.shape[1:]).transpose(0, 1, 3, 2, 4, 5)
    return rows.reshape(*shape[:2], -1, rows.shape[-1])[:, :, : of.length]


def backward(grad: Any, q: Any, k: Any, v: Any, extra: Extra, how: How, of_bias: bool = False) -> tuple[Any, ...]:
    """Gradients of q, k and v, and with `of_bias` of the bias."""
    of = _Blocks.of(q, k, v, extra, how)
    grads = _padded(grad, 2, of.rows).reshape(*of.q.shape[:4], grad.shape[3])

    def step(sums: tuple[Any, ...], i: Any) -> tuple[tuple[Any, ...], Any]:
        at = of.place(i)
        grad_key, grad_value, grad_bias = sums
        key, value, rows, back = k[at[:2]], v[at[:2]], of.rows_of(of.q, at), of.rows_of(grads, at)
        exact, mask = of.probabilities(at), of.kept(at)
        grad_value = grad_value.at[at[:2]].add(of.product("rqk,rqv->kv", of.dropped(exact, mask).astype(q.dtype), back))
        grad_probabilities = of.dropped(of.product("rqv,kv->rqk", back, value), mask)
        grad_scores = exact * (grad_probabilities - (exact * grad_probabilities).sum(-1, keepdims=True))
        for seen in of.seen(at) if how.hidden != "zeros" and not how.added else ():
            grad_scores = jnp.where(seen, grad_scores, 0)
        if of_bias:
            grad_bias = _added(grad_bias, grad_scores, of.begin(at))
        grad_dots = grad_scores.astype(q.dtype)
        grad_key = grad_key.at[at[:2]].add(of.product("rqk,rqe->ke", grad_dots, rows))
        return (grad_key, grad_value, grad_bias), of.product("rqk,ke->rqe", grad_dots, key).astype(q.dtype)

    zeros = [jnp.zeros(x.shape, jnp.float32) for x in (k, v)]
    grad_bias = jnp.zeros(of.extra.bias.shape, jnp.float32) if of_bias else None
    (grad_key, grad_value, grad_bias), grad_query = jax.lax.scan(step, (*zeros, grad_bias), jnp.arange(of.count))
    gradients = _from_rows(grad_query, of, q.shape), grad_key.astype(k.dtype), grad_value.astype(v.dtype)
    if not of_bias or grad_bias is None:
        return gradients
    return *gradients, grad_bias[:, :, : extra.bias.shape[2]].astype(extra.bias.dtype)


def _added(total: Any, x: Any, begin: tuple[Any, ...]) -> Any:
    """`total`, of the shape of the bias, plus the gradient of the scores of a block, [group, rows, S]."""
    repeated = tuple(i for i, size in enumerate(total.shape[1:]) if size == 1)
    reduced = x.sum(repeated, keepdims=True)[None]
    return jax.lax.dynamic_update_slice(total, jax.lax.dynamic_slice(total, begin, reduced.shape) + reduced, begin)


def extra_of(names: str, operands: tuple[Any, ...]) -> Extra:
    """The operands after the value, given the names that the op has for them."""
    remaining, by_name = list(operands), dict[str, Any]()
    for name in names.split(",") if names else ():
        count = {"segments": 2, "dropout": 4}.get(name, 1)
        by_name[name] = remaining.pop(0) if count == 1 else tuple(remaining.pop(0) for _ in range(count))
    return Extra(**by_name)


@template("attention_by_blocks", x64=False)
def attention_by_blocks(q: Any, k: Any, v: Any, *rest: Any, extra: str, **how: Any) -> Any:
    """The output, [batch, heads, L, V], of scaled q, k, v and the operands that `extra` names."""
    return forward(q, k, v, extra_of(extra, rest), How(**how))


@template("attention_by_blocks_backward", x64=False)
def attention_by_blocks_backward(
    grad: Any, q: Any, k: Any, v: Any, *rest: Any, extra: str, of_bias: bool, **how: Any
) -> tuple[Any, ...]:
    """Gradients of q, k and v, and with `of_bias` of the bias."""
    return partial(backward, of_bias=of_bias)(grad, q, k, v, extra_of(extra, rest), How(**how))
