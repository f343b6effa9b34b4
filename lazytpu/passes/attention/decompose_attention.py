"""`decompose-attention`: write attention out in products and a softmax.

    %4 = lazytpu.attention %q, %k, %v causal = true scale = 0.125
    ->
    %0 = lazytpu.dot_general %q, %k ...            query·keyᵀ, in f32 for f16 and bf16
    %1 = lazytpu.mul %0, ...                       · scale
    %2 = lazytpu.select ...                        -inf where key > query
    %3 = exp(%2 - max) / Σ exp(%2 - max)
    %4 = lazytpu.dot_general %3, %v ...            · value

The backward op computes the probabilities with the same ops as the forward one, so that `cse` shares them and gradients
belong to exactly the probabilities that were used. With P the probabilities and D = Σ P·(grad·valueᵀ) over the keys:
∂value = Pᵀ·grad, ∂scores = P·(grad·valueᵀ - D). D is Σ grad·output as well, but the output was rounded.

Needs: nothing; `cse` after it. Guarantees: no attention op is left; what was built for one carries its source line and
its recompute mark.
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
"The dtype of scores and probabilities, where it is not the operands'."
LARGEST = {"f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308}


@dataclass(frozen=True)
class DecomposeAttentionPass(ModulePass):
    """Attention ops into products and softmax."""

    name = "decompose-attention"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for each in [each for each in op.walk() if isinstance(each, AttentionOp | AttentionBackwardOp)]:
            try:
                decompose(each)
            except Exception as error:
                note_op(error, each)
                raise


def decompose(op: AttentionOp | AttentionBackwardOp) -> None:
    """Replace one attention op."""
    rewriter = PatternRewriter(op)
    b = RewriteBuilder(op, rewriter)
    if isinstance(op, AttentionOp):
        made = [forward(b, op.attention)]
    else:
        made = backward(b, op.operands[0], op.attention, bool(integer(op.of_bias)))
    rewriter.replace(op, (), made)


@dataclass(frozen=True)
class _Heads:
    """One attention with its queries by key head, [batch, kv heads, group, L, E]; with one query head for each key head
    the dimension `group` is not there."""

    of: Attention
    query: SSAValue

    @property
    def rows(self) -> tuple[int, ...]:
        """The dimensions of a query that a key head has more than one of: those of group and L."""
        return tuple(range(2, len(shape_of(self.query)) - 1))

    @property
    def last(self) -> tuple[int]:
        return (len(shape_of(self.query)) - 1,)

    @property
    def grouped(self) -> tuple[int, ...]:
        """The shape of the scores as the products have them: [batch, kv heads, group, L, S]."""
        return (*shape_of(self.query)[:-1], self.of.scores[-1])

    def by_key_head(self, b: Builder, x: SSAValue) -> SSAValue:
        """[batch, heads, L, n] as [batch, kv heads, group, L, n]."""
        return b.reshape(x, [*shape_of(self.query)[:-1], shape_of(x)[-1]])

    def product(
        self, b: Builder, x: SSAValue, y: SSAValue, of_x: tuple[int, ...], of_y: tuple[int, ...] | None = None
    ) -> SSAValue:
        dtype = dtype_of(x)
        precision = "default" if dtype in WIDE else "highest" if dtype == "f64" else self.of.precision
        to = WIDE.get(dtype, dtype)
        of_y = of_x if of_y is None else of_y
        return b.dot_general(x, y, (0, 1), (0, 1), of_x, of_y, precision=precision, dtype=to)


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
    """The masks, of the shape of the scores: True where a query sees a key."""
    shape, made = of.scores, list[SSAValue]()
    if of.causal or of.window:
        rows, columns = b.iota("i32", shape[2:], 0), b.iota("i32", shape[2:], 1)
        if of.offset is not None:
            rows = b.add(rows, b.broadcast_to(of.offset, shape[2:]))
        if of.causal:
            made.append(b.broadcast_to(b.compare("GE", rows, columns), shape))
        if of.window:
            least = b.sub(rows, _like(b, of.window, rows))
            made.append(b.broadcast_to(b.compare("LT", least, columns), shape))
    if of.bias is not None and dtype_of(of.bias) == "i1":
        made.append(b.broadcast_to(of.bias, shape))
    return made


def _probabilities(b: Builder, heads: _Heads) -> SSAValue:
    """Softmax of the scores; of a row that is hidden altogether `hidden` says whether it gives zeros, as torch's
    `_safe_softmax`, or what comes of it."""
    scores, of = _scores(b, heads), heads.of
    hidden_rows = of.hidden == "zeros" and (of.bias is not None or of.offset is not None or of.window > 0)
    shape = shape_of(scores)
    largest = b.reduce("max", scores, [3])
    if hidden_rows:
        largest = b.select(b.compare("EQ", largest, _like(b, -inf, largest)), _like(b, 0, largest), largest)
    exps = b.exp(b.sub(scores, _along_keys(b, largest, shape)))
    total = b.reduce("add", exps, [3])
    if hidden_rows:
        total = b.select(b.compare("EQ", total, _like(b, 0, total)), _like(b, 1, total), total)
    return b.div(exps, _along_keys(b, total, shape))


def kept_below(b: Builder, keep: SSAValue) -> SSAValue:
    """What 24 random bits have to be below with this probability, 0-d f32: a 0-d ui32."""
    return b.convert(b.unary("ceil", b.mul(keep, b.constant(2.0**24, "f32"))), "ui32")


def _dropout(b: Builder, x: SSAValue, keep: SSAValue, factor: SSAValue, seed: SSAValue, offset: SSAValue) -> SSAValue:
    """x · factor where a random number keeps it, else 0; the numbers depend on seed and offset alone (R7)."""
    bits = b.random_bits(seed, offset, shape_of(x))
    upper = b.binary("shift_right_logical", bits, b.constant(8, "ui32", shape_of(x)))
    kept = b.compare("LT", upper, b.broadcast_to(kept_below(b, keep), shape_of(x)))
    return b.select(kept, b.mul(x, b.broadcast_to(b.convert(factor, dtype_of(x)), shape_of(x))), _like(b, 0, x))


def forward(b: Builder, of: Attention) -> SSAValue:
    """The output, [batch, heads, L, V]."""
    heads = _heads(b, of)
    used = _probabilities(b, heads)
    if of.dropout is not None:
        used = _dropout(b, used, *of.dropout)
    dtype = dtype_of(of.value)
    weights = b.convert(b.reshape(used, heads.grouped), dtype)
    made = heads.product(b, weights, of.value, heads.last, (2,))
    return b.convert(b.reshape(made, [*shape_of(of.query)[:3], shape_of(of.value)[3]]), dtype)


def backward(b: Builder, grad: SSAValue, of: Attention, of_bias: bool) -> list[SSAValue]:
    """Gradients of query, key and value, and with `of_bias` of the bias."""
    heads, dtype = _heads(b, of), dtype_of(of.query)
    probabilities = _probabilities(b, heads)
    used = probabilities if of.dropout is None else _dropout(b, probabilities, *of.dropout)
    grad = heads.by_key_head(b, grad)
    of_value = heads.product(b, b.convert(b.reshape(used, heads.grouped), dtype), grad, heads.rows)

    spread = b.reshape(heads.product(b, grad, of.value, heads.last, (3,)), of.scores)
    if of.dropout is not None:
        spread = _dropout(b, spread, *of.dropout)
    common = b.reduce("add", b.mul(probabilities, spread), [3])
    of_scores = b.mul(probabilities, b.sub(spread, _along_keys(b, common, of.scores)))
    for seen in _seen(b, of) if of.hidden != "zeros" and not of.added else ():
        of_scores = b.select(seen, of_scores, _like(b, 0, of_scores))
    made: list[SSAValue] = []
    if of.bias is not None and of_bias:
        made.append(b.convert(_summed_to(b, of_scores, shape_of(of.bias)), dtype_of(of.bias)))

    of_dots = b.convert(b.reshape(of_scores, heads.grouped), dtype)
    of_query = heads.product(b, of_dots, of.key, heads.last, (2,))
    of_key = heads.product(b, of_dots, heads.query, heads.rows)
    of_query, of_key = _scaled(b, of_query, of), _scaled(b, of_key, of)
    return [
        b.convert(b.reshape(of_query, shape_of(of.query)), dtype),
        b.convert(b.reshape(of_key, shape_of(of.key)), dtype),
        b.convert(b.reshape(of_value, shape_of(of.value)), dtype),
        *made,
    ]


def _summed_to(b: Builder, x: SSAValue, shape: Sequence[int]) -> SSAValue:
    """`x` summed over the dims that broadcasting from `shape` made."""
    own = shape_of(x)
    missing = len(own) - len(shape)
    dims = [d for d in range(len(own)) if d < missing or (shape[d - missing] == 1 and own[d] != 1)]
    return b.reshape(b.reduce("add", x, dims), shape)
