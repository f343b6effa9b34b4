"""`decompose-attention`: decompose attention into products and a softmax.

    %4 = lazytpu.attention %q, %k, %v causal = true scale = 0.125
    ->
    %0 = lazytpu.dot_general %q, %k ...            query·keyᵀ, in f32 for f16 and bf16
    %1 = lazytpu.mul %0, ...                       · scale
    %2 = lazytpu.select ...                        -inf where key > query
    %3 = exp(%2 - max) / Σ exp(%2 - max)
    %4 = lazytpu.dot_general %3, %v ...            · value

The backward op computes the probabilities with the same ops as the forward one, so that `cse` shares them and the
gradients belong to exactly the probabilities that were used. With P the probabilities and D = Σ P·(grad·valueᵀ) over
the keys: ∂value = Pᵀ·grad, ∂scores = P·(grad·valueᵀ - D). D equals Σ grad·output too, but the output is rounded.

Needs: nothing; `cse` should follow. Guarantees: no attention op is left; the ops that replace one carry its source line
and recompute mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter

from lazytpu.ir.attention import Attention, AttentionBackwardOp, AttentionOp
from lazytpu.ir.base import integer
from lazytpu.ir.builder import Builder
from lazytpu.ir.types import dtype_of, shape_of
from lazytpu.passes.errors import note_op
from lazytpu.passes.patterns.rewriting import RewriteBuilder

WIDE = {"f16": "f32", "bf16": "f32"}
"""The dtype of scores and probabilities where it differs from the operands' dtype."""
LARGEST = {"f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308}


@dataclass(frozen=True)
class DecomposeAttentionPass(ModulePass):
    """Decomposes attention ops into products and a softmax."""

    name = "decompose-attention"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for attention in [o for o in op.walk() if isinstance(o, AttentionOp | AttentionBackwardOp)]:
            try:
                decompose(attention)
            except Exception as error:
                note_op(error, attention)
                raise


def decompose(op: AttentionOp | AttentionBackwardOp) -> None:
    """Replace one attention op by its decomposition."""
    rewriter = PatternRewriter(op)
    b = RewriteBuilder(op, rewriter)
    if isinstance(op, AttentionOp):
        results = [forward(b, op.attention)]
    else:
        results = backward(b, op.operands[0], op.attention, bool(integer(op.of_bias)))
    rewriter.replace(op, (), results)


@dataclass(frozen=True)
class _Heads:
    """An attention with its queries grouped by key head: [batch, kv heads, group, L, E], or without the dimension
    `group` when there is one query head for each key head."""

    of: Attention
    query: SSAValue

    @property
    def rows(self) -> tuple[int, ...]:
        """The dimensions of the grouped query that range over the queries of one key head: group and L."""
        return tuple(range(2, len(shape_of(self.query)) - 1))

    @property
    def last(self) -> tuple[int]:
        return (len(shape_of(self.query)) - 1,)

    @property
    def grouped(self) -> tuple[int, ...]:
        """The shape of the scores in the products: [batch, kv heads, group, L, S]."""
        return (*shape_of(self.query)[:-1], self.of.scores[-1])

    def by_key_head(self, b: Builder, x: SSAValue) -> SSAValue:
        """[batch, heads, L, n] as [batch, kv heads, group, L, n]."""
        return b.reshape(x, [*shape_of(self.query)[:-1], shape_of(x)[-1]])

    def product(
        self, b: Builder, x: SSAValue, y: SSAValue, dims_x: tuple[int, ...], dims_y: tuple[int, ...] | None = None
    ) -> SSAValue:
        dtype = dtype_of(x)
        precision = "default" if dtype in WIDE else "highest" if dtype == "f64" else self.of.precision
        to = WIDE.get(dtype, dtype)
        dims_y = dims_x if dims_y is None else dims_y
        return b.dot_general(x, y, (0, 1), (0, 1), dims_x, dims_y, precision=precision, dtype=to)


def _heads(b: Builder, of: Attention) -> _Heads:
    batch, heads, length, width = shape_of(of.query)
    shared = shape_of(of.key)[1]
    group = [] if heads == shared else [heads // shared]
    return _Heads(of, b.reshape(of.query, [batch, shared, *group, length, width]))


def _like(b: Builder, value: float, like: SSAValue) -> SSAValue:
    return b.constant(value, dtype_of(like), shape_of(like))


def _along_keys(b: Builder, x: SSAValue, scores: Sequence[int]) -> SSAValue:
    return b.broadcast_in_dim(x, scores, [0, 1, 2])


def _scaled(b: Builder, x: SSAValue, of: Attention) -> SSAValue:
    factor = (
        _like(b, of.scale, x) if of.factor is None else b.broadcast_to(b.convert(of.factor, dtype_of(x)), shape_of(x))
    )
    return b.mul(x, factor)


def _scores(b: Builder, heads: _Heads) -> SSAValue:
    """query·keyᵀ·scale with bias and masks, [batch, heads, L, S]."""
    of, shape = heads.of, heads.of.scores
    dots = _scaled(b, b.reshape(heads.product(b, heads.query, of.key, heads.last, (3,)), shape), of)
    hidden = _like(b, -LARGEST[dtype_of(dots)] if of.hidden == "mean" else -inf, dots)
    for seen in _seen(b, of):
        dots = b.select(seen, dots, hidden)
    if of.bias is None or dtype_of(of.bias) == "i1":
        return dots
    return b.add(dots, b.broadcast_to(b.convert(of.bias, dtype_of(dots)), shape))


def _seen(b: Builder, of: Attention) -> list[SSAValue]:
    """Boolean masks of the shape of the scores: True where a query sees a key."""
    shape, masks = of.scores, list[SSAValue]()
    if of.causal or of.window:
        rows, columns = b.iota("i32", shape[2:], 0), b.iota("i32", shape[2:], 1)
        if of.offset is not None:
            rows = b.add(rows, b.broadcast_to(of.offset, shape[2:]))
        if of.causal:
            masks.append(b.broadcast_to(b.compare("GE", rows, columns), shape))
        if of.window:
            least = b.sub(rows, _like(b, of.window, rows))
            masks.append(b.broadcast_to(b.compare("LT", least, columns), shape))
    if of.bias is not None and dtype_of(of.bias) == "i1":
        masks.append(b.broadcast_to(of.bias, shape))
    return masks


def _probabilities(b: Builder, heads: _Heads) -> SSAValue:
    """Return the softmax of the scores. A row in which all scores are hidden gives zeros if `hidden` says so, as in
    torch's `_safe_softmax`; otherwise the result of the softmax."""
    scores, of = _scores(b, heads), heads.of
    hidden_rows = of.hidden == "zeros" and (of.bias is not None or of.offset is not None or of.window > 0)
    shape = shape_of(scores)
    largest = b.reduce("peak", scores, [3])
    if hidden_rows:
        largest = b.select(b.compare("EQ", largest, _like(b, -inf, largest)), _like(b, 0, largest), largest)
    exps = b.exp(b.sub(scores, _along_keys(b, largest, shape)))
    total = b.reduce("add", exps, [3])
    if hidden_rows:
        total = b.select(b.compare("EQ", total, _like(b, 0, total)), _like(b, 1, total), total)
    return b.div(exps, _along_keys(b, total, shape))


def kept_below(b: Builder, keep: SSAValue) -> SSAValue:
    """The threshold, 0-d ui32, that 24 random bits are below with the probability `keep`, 0-d f32."""
    return b.convert(b.unary("ceil", b.mul(keep, b.constant(2.0**24, "f32"))), "ui32")


def _dropout(b: Builder, x: SSAValue, keep: SSAValue, factor: SSAValue, seed: SSAValue, offset: SSAValue) -> SSAValue:
    """x · factor where random bits keep it, else 0; the bits depend only on seed and offset (R7)."""
    bits = b.random_bits(seed, offset, shape_of(x))
    upper = b.binary("shift_right_logical", bits, b.constant(8, "ui32", shape_of(x)))
    is_kept = b.compare("LT", upper, b.broadcast_to(kept_below(b, keep), shape_of(x)))
    return b.select(is_kept, b.mul(x, b.broadcast_to(b.convert(factor, dtype_of(x)), shape_of(x))), _like(b, 0, x))


def forward(b: Builder, of: Attention) -> SSAValue:
    """The output, [batch, heads, L, V]."""
    heads = _heads(b, of)
    dropped = _probabilities(b, heads)
    if of.dropout is not None:
        dropped = _dropout(b, dropped, *of.dropout)
    dtype = dtype_of(of.value)
    weights = b.convert(b.reshape(dropped, heads.grouped), dtype)
    output = heads.product(b, weights, of.value, heads.last, (2,))
    return b.convert(b.reshape(output, [*shape_of(of.query)[:3], shape_of(of.value)[3]]), dtype)


def backward(b: Builder, grad: SSAValue, of: Attention, of_bias: bool) -> list[SSAValue]:
    """Gradients of query, key and value, and with `of_bias` of the bias."""
    heads, dtype = _heads(b, of), dtype_of(of.query)
    probabilities = _probabilities(b, heads)
    dropped = probabilities if of.dropout is None else _dropout(b, probabilities, *of.dropout)
    grad = heads.by_key_head(b, grad)
    grad_value = heads.product(b, b.convert(b.reshape(dropped, heads.grouped), dtype), grad, heads.rows)

    grad_probabilities = b.reshape(heads.product(b, grad, of.value, heads.last, (3,)), of.scores)
    if of.dropout is not None:
        grad_probabilities = _dropout(b, grad_probabilities, *of.dropout)
    common = b.reduce("add", b.mul(probabilities, grad_probabilities), [3])
    grad_scores = b.mul(probabilities, b.sub(grad_probabilities, _along_keys(b, common, of.scores)))
    for seen in _seen(b, of) if of.hidden != "zeros" and not of.added else ():
        grad_scores = b.select(seen, grad_scores, _like(b, 0, grad_scores))
    bias_gradient: list[SSAValue] = []
    if of.bias is not None and of_bias:
        bias_gradient.append(b.convert(_summed_to(b, grad_scores, shape_of(of.bias)), dtype_of(of.bias)))

    grad_dots = b.convert(b.reshape(grad_scores, heads.grouped), dtype)
    grad_query = heads.product(b, grad_dots, of.key, heads.last, (2,))
    grad_key = heads.product(b, grad_dots, heads.query, heads.rows)
    grad_query, grad_key = _scaled(b, grad_query, of), _scaled(b, grad_key, of)
    return [
        b.convert(b.reshape(grad_query, shape_of(of.query)), dtype),
        b.convert(b.reshape(grad_key, shape_of(of.key)), dtype),
        b.convert(b.reshape(grad_value, shape_of(of.value)), dtype),
        *bias_gradient,
    ]


def _summed_to(b: Builder, x: SSAValue, shape: Sequence[int]) -> SSAValue:
    """`x` summed to `shape`, over the dimensions that broadcasting from `shape` added or repeated."""
    wide = shape_of(x)
    missing = len(wide) - len(shape)
    dims = [d for d in range(len(wide)) if d < missing or (shape[d - missing] == 1 and wide[d] != 1)]
    return b.reshape(b.reduce("add", x, dims), shape)
