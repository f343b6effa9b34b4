"""Scaled dot-product attention as one op, forward and backward.

query [batch, heads, L, E], key [batch, kv heads, S, E], value [batch, kv heads, S, V]; without the batch dim as well.
Several query heads may share one key and value head (head h uses h // group). Scores and softmax are f32 for f16 and
bf16.

The backward op computes the probabilities with the same ops as the forward one: within one program they are shared,
so nothing is computed twice and gradients belong to exactly the probabilities that were used; in another program they
are recomputed from query and key instead of being kept, as in https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING

from lazytpu.aten.contractions import contract
from lazytpu.aten.dims import along
from lazytpu.aten.pointwise import full
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder

Stream = tuple["SSAValue", "SSAValue"]


@dataclass
class Heads:
    """The operands of one attention with their queries grouped by key head: [batch, kv heads, group·L, E]."""

    query: SSAValue
    key: SSAValue
    value: SSAValue
    scores: tuple[int, ...]
    "[batch, heads, L, S]"

    @property
    def grouped(self) -> tuple[int, ...]:
        """The shape of the scores as the products have them: [batch, kv heads, group·L, S]."""
        return (*shape_of(self.query)[:3], self.scores[-1])

    def by_key_head(self, b: Builder, x: SSAValue) -> SSAValue:
        """[batch, heads, L, n] as [batch, kv heads, group·L, n]."""
        return b.reshape(x, [*shape_of(self.query)[:3], shape_of(x)[-1]])


def _heads(b: Builder, query: SSAValue, key: SSAValue, value: SSAValue) -> Heads:
    if len(shape_of(query)) == 3:
        query, key, value = (b.reshape(x, [1, *shape_of(x)]) for x in (query, key, value))
    batch, heads, length, width = shape_of(query)
    shared = shape_of(key)[1]
    scores = (batch, heads, length, shape_of(key)[2])
    return Heads(b.reshape(query, [batch, shared, heads // shared * length, width]), key, value, scores)


def _product(b: Builder, x: SSAValue, y: SSAValue, over: tuple[int, int]) -> SSAValue:
    return contract(b, x, y, over=((over[0],), (over[1],)), batch=((0, 1), (0, 1)))


def _scores(b: Builder, of: Heads, bias: SSAValue | None, causal: bool, scale: Scalar | None) -> SSAValue:
    """query·key·scale with bias and masks, [batch, heads, L, S]; scale is 1/√E unless given."""
    dots = b.reshape(_product(b, of.query, of.key, (3, 3)), of.scores)
    factor = 1 / sqrt(shape_of(of.query)[3]) if scale is None else scale
    dots = b.mul(dots, full(b, factor, dots))
    hidden = full(b, -inf, dots)
    if causal:
        rows, columns = b.iota("i32", of.scores[2:], 0), b.iota("i32", of.scores[2:], 1)
        dots = b.select(b.broadcast_to(b.compare("GE", rows, columns), of.scores), dots, hidden)
    if bias is None:
        return dots
    if dtype_of(bias) == "i1":
        return b.select(b.broadcast_to(bias, of.scores), dots, hidden)
    return b.add(dots, b.broadcast_to(b.convert(bias, dtype_of(dots)), of.scores))


def _softmax(b: Builder, scores: SSAValue, *, hidden_rows: bool) -> SSAValue:
    """Probabilities; a row that is hidden altogether gives zeros, as torch's `_safe_softmax`."""
    shape = shape_of(scores)
    largest = b.reduce("max", scores, [3])
    if hidden_rows:
        largest = b.select(b.compare("EQ", largest, full(b, -inf, largest)), full(b, 0, largest), largest)
    exps = b.exp(b.sub(scores, along(b, largest, shape, [3])))
    total = b.reduce("add", exps, [3])
    if hidden_rows:
        total = b.select(b.compare("EQ", total, full(b, 0, total)), full(b, 1, total), total)
    return b.div(exps, along(b, total, shape, [3]))


def _dropout(b: Builder, x: SSAValue, probability: Scalar, stream: Stream) -> SSAValue:
    """x / (1 - probability) where a random number keeps it, else 0; the numbers depend on the stream alone (R7)."""
    p, one = b.scalar(probability, "f64"), b.constant(1.0, "f64")
    bits = b.random_bits(*stream, shape_of(x))
    least = b.min(b.unary("round_nearest_even", b.mul(p, b.constant(2.0**32, "f64"))), b.constant(2.0**32 - 1, "f64"))
    keep = b.compare("GE", bits, b.broadcast_to(b.convert(least, "ui32"), shape_of(x)))
    all_go = b.compare("GE", p, one)
    scale = b.select(all_go, b.constant(0.0, "f64"), b.div(one, b.sub(one, p)))
    kept = b.mul(x, b.broadcast_to(b.convert(scale, dtype_of(x)), shape_of(x)))
    return b.select(keep, b.select(all_go, full(b, 0, x), kept), full(b, 0, x))


@rule("lazytpu.attention.default", promotable=("scale",))
def attention(
    b: Builder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    bias: SSAValue | None,
    causal: bool,
    scale: Scalar | None,
) -> SSAValue:
    """The output, [batch, heads, L, V]."""
    return _attention(b, _heads(b, query, key, value), bias, causal, scale, None)


@rule("lazytpu.attention_dropout.default", numbers=("dropout",), promotable=("scale",), random=True)
def attention_dropout(
    b: Builder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    bias: SSAValue | None,
    causal: bool,
    scale: Scalar | None,
    dropout: Scalar,
    rng: Stream,
) -> tuple[SSAValue, ...]:
    """(output, seed, offset): the stream that the backward op draws the same numbers from."""
    output = _attention(b, _heads(b, query, key, value), bias, causal, scale, (dropout, rng))
    seed, offset = (b.bitcast_convert(x, "i64") for x in rng)
    return output, seed, offset


def _attention(
    b: Builder,
    of: Heads,
    bias: SSAValue | None,
    causal: bool,
    scale: Scalar | None,
    dropout: tuple[Scalar, Stream] | None,
) -> SSAValue:
    probabilities = _softmax(b, _scores(b, of, bias, causal, scale), hidden_rows=bias is not None)
    if dropout is not None:
        probabilities = _dropout(b, probabilities, *dropout)
    weights = b.convert(b.reshape(probabilities, of.grouped), dtype_of(of.value))
    dtype, shape = b.out[0]
    return b.convert(b.reshape(_product(b, weights, of.value, (3, 2)), shape), dtype)


@rule("lazytpu.attention_backward.default", numbers=("dropout",), promotable=("scale",))
def attention_backward(
    b: Builder,
    grad: SSAValue,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    bias: SSAValue | None,
    seed: SSAValue | None,
    offset: SSAValue | None,
    causal: bool,
    scale: Scalar | None,
    dropout: Scalar,
    of_bias: bool,
) -> tuple[SSAValue | None, ...]:
    """Gradients of (query, key, value, bias). With P the probabilities and D = Σ P·(grad·valueᵀ) over the keys:
    ∂value = Pᵀ·grad, ∂scores = P·(grad·valueᵀ - D). D is Σ grad·output as well, but the output was rounded."""
    of, dtype = _heads(b, query, key, value), dtype_of(query)
    probabilities = _softmax(b, _scores(b, of, bias, causal, scale), hidden_rows=bias is not None)
    stream = None
    if seed is not None and offset is not None:
        stream = (b.bitcast_convert(seed, "ui64"), b.bitcast_convert(offset, "ui64"))
    used = probabilities if stream is None else _dropout(b, probabilities, dropout, stream)
    grad = of.by_key_head(b, grad)
    of_value = _product(b, b.convert(b.reshape(used, of.grouped), dtype), grad, (2, 2))

    spread = b.reshape(_product(b, grad, of.value, (3, 3)), of.scores)
    if stream is not None:
        spread = _dropout(b, spread, dropout, stream)
    common = b.reduce("add", b.mul(probabilities, spread), [3])
    of_scores = b.mul(probabilities, b.sub(spread, along(b, common, of.scores, [3])))
    gradient_of_bias = None
    if bias is not None and of_bias:
        gradient_of_bias = b.convert(_summed_to(b, of_scores, shape_of(bias)), dtype_of(bias))

    of_dots = b.convert(b.reshape(of_scores, of.grouped), dtype)
    of_query, of_key = _product(b, of_dots, of.key, (3, 2)), _product(b, of_dots, of.query, (2, 2))
    factor = 1 / sqrt(shape_of(query)[-1]) if scale is None else scale
    of_query, of_key = b.mul(of_query, full(b, factor, of_query)), b.mul(of_key, full(b, factor, of_key))
    return (
        b.convert(b.reshape(of_query, shape_of(query)), dtype),
        b.convert(b.reshape(of_key, shape_of(key)), dtype_of(key)),
        b.convert(b.reshape(of_value, shape_of(value)), dtype_of(value)),
        gradient_of_bias,
    )


def _summed_to(b: Builder, x: SSAValue, shape: Sequence[int]) -> SSAValue:
    """`x` summed over the dims that broadcasting from `shape` made."""
    own = shape_of(x)
    missing = len(own) - len(shape)
    dims = [d for d in range(len(own)) if d < missing or (shape[d - missing] == 1 and own[d] != 1)]
    return b.reshape(b.reduce("add", x, dims), shape)
