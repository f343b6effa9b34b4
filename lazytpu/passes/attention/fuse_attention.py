"""`fuse-attention`: fuse attention as models write it, forward and backward, into attention ops.

    %0 = lazytpu.dot_general %q, %k                  query·keyᵀ
    %1 = lazytpu.select %mask, lazytpu.mul(%0, s), -inf
    %2 = softmax of %1 over the keys           ->    %3 = lazytpu.attention %q, %k, %v causal = true scale = s
    %3 = lazytpu.dot_general %2, %v
    %4 = lazytpu.dot_general %g, %v                  %5, %6, %7 = lazytpu.attention_backward %g, %q, %k, %v ...
    %8 = gradient of the softmax, from %4 and %2
    %5, %6 = products of %8 with %k and %q, %7 of %2 with %g

Products may have their dimensions in any order, with batch and heads merged or split; scores may be scaled by a number,
masked by selects or by adding 0 and -inf (see masks.py), biased by adding other floats, and converted between float
dtypes; probabilities may be dropped (dropout.py). The backward pass, if there is one, is matched together with its
forward pass, or neither is.

Needs: canonical form. Guarantees: only attention with enough scores for `flash-attention` is rewritten, and only when
nothing else uses the values that are no longer computed, such as the probabilities. Scores stay f32 where the model
rounded them to bf16 in between. A query that sees no key gives NaN or the mean of the values, as in the model. Where
masks of both kinds are mixed, so that it would give something else, and some query may see no key, the model is left
unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter

from lazytpu.ir.attention import Attention
from lazytpu.ir.binary import DivOp, MulOp, SubOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.contractions import DotGeneralOp
from lazytpu.ir.pointwise import ConvertOp, SelectOp
from lazytpu.ir.shape import ReshapeOp
from lazytpu.ir.types import dtype_of, shape_of
from lazytpu.passes.attention.dropout import Dropped, drawn, dropped, dropped_from
from lazytpu.passes.attention.flash_attention import BY_BLOCKS, LEAST, refusal_of
from lazytpu.passes.attention.masks import added_to_scores, bias_of, offset_of, positions
from lazytpu.passes.attention.products import (
    ScoresProduct,
    Vectors,
    is_view,
    product_with,
    same,
    scores_of,
    source,
)
from lazytpu.passes.attention.scores import Scores, row, scaling, scores
from lazytpu.passes.errors import note_op
from lazytpu.passes.patterns.rewriting import RewriteBuilder, splat


@dataclass(frozen=True)
class FuseAttentionPass(ModulePass):
    """Fuses attention that a model writes out into attention ops."""

    name = "fuse-attention"
    least: int = LEAST

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for division in [o for o in op.walk() if isinstance(o, DivOp)]:
            try:
                attention = match(division)
                if attention is not None and attention.refusal(self.least) is None:
                    attention.rewrite()
            except Exception as error:
                note_op(error, division)
                raise


@dataclass
class Match:
    """A matched attention: its scores, the products to replace, and all other ops, `inside`, which nothing else
    uses."""

    of: Scores
    inside: set[Operation]
    output: ScoresProduct | None = None
    grad_value: ScoresProduct | None = None
    grad_query: ScoresProduct | None = None
    grad_key: ScoresProduct | None = None
    grad: Vectors | None = None
    value: Vectors | None = None
    dropped: Dropped | None = None
    "The dropout of the probabilities."
    backward_factor: SSAValue | None = None
    "The factor of dropout in the backward pass: equal to the forward one, but another value in the module."
    unmasked: int = 0
    "The number of masks that are applied to the gradient of the scores."
    gradient_scale: float | tuple[SSAValue, bool] = 1.0
    "The scale of the gradients: a number, or a run-time number and whether it divides."
    replaced: list[Operation] = field(default_factory=list[Operation])

    def refusal(self, least: int) -> str | None:
        """Return the reason for which this attention is not rewritten; None when it is."""
        value = self.value
        assert value is not None
        dtypes = {dtype_of(x.value) for x in (self.of.query, self.of.key, value)}
        if len(dtypes) > 1:
            return f"query, key and value have different dtypes: {', '.join(sorted(dtypes))}"
        batch, heads = self.heads
        by_blocks = self.of.bias is not None or self.dropped is not None
        return refusal_of(dtypes.pop(), (batch, heads, *self.of.shape[-2:]), least * (BY_BLOCKS if by_blocks else 1))

    @property
    def heads(self) -> tuple[int, int]:
        """(batch, heads): the last batch dimension is taken as heads, and the others as batch; a single one as
        batch."""
        lead = self.of.shape[:-2]
        return (prod(lead[:-1]), lead[-1]) if len(lead) > 1 else (prod(lead), 1)

    def rewrite(self) -> None:
        """Build the attention ops and replace the products by their results."""
        block = self.of.product.parent
        assert block is not None
        first = _first(block, self.replaced)
        b = RewriteBuilder(first, PatternRewriter(first))
        of = self._attention(b)
        if self.output is not None:
            self._replace(self.output, b.attention(of))
        gradients = [x for x in (self.grad_query, self.grad_key, self.grad_value) if x is not None]
        if not gradients:
            return
        assert self.grad is not None
        first = _first(block, [x.op for x in gradients])
        b = RewriteBuilder(first, PatternRewriter(first))
        results = b.attention_backward(self.grad.by_heads(b, "q", *self.heads), of)
        for product, gradient in zip((self.grad_query, self.grad_key, self.grad_value), results, strict=True):
            if product is not None:
                self._replace(product, gradient, None if product is self.grad_value else of)

    def _replace(self, product: ScoresProduct, x: SSAValue, scaled: Attention | None = None) -> None:
        rewriter = PatternRewriter(product.op)
        b = RewriteBuilder(product.op, rewriter)
        if scaled is not None:
            x = self._rescaled(b, x, scaled)
        rewriter.replace(product.op, (), (product.from_heads(b, x),))

    def _attention(self, b: Builder) -> Attention:
        s, visible, value = self.of, self.of.visible, self.value
        assert value is not None
        batch, heads = self.heads
        query, key, value = (
            x.by_heads(b, rows, batch, heads) for x, rows in ((s.query, "q"), (s.key, "k"), (value, "k"))
        )
        scale = None if s.factor is None else _inverse(b, b.convert(s.factor, "f32"), s.divides)
        if scale is not None and s.scale != 1.0:
            scale = b.mul(scale, b.constant(s.scale, "f32"))
        bounds = positions(visible)
        assert bounds is not None
        offset, window = bounds
        hidden = s.hidden
        assert hidden is not None
        return Attention(
            query,
            key,
            value,
            bias_of(b, visible, batch, s.shape[-1]) if s.bias is None else added_to_scores(b, s.bias),
            scale,
            offset_of(b, offset),
            self._dropout(b),
            causal=visible.last is not None,
            window=window,
            scale=s.scale if scale is None else 1.0,
            precision=s.product.precision.data,
            hidden=hidden,
            added=hidden != "zeros" and self.grad_query is not None and not self.unmasked,
        )

    def _dropout(self, b: Builder) -> tuple[SSAValue, SSAValue, SSAValue, SSAValue] | None:
        stream = None if self.dropped is None else drawn(self.dropped.mask)
        if self.dropped is None or stream is None:
            return None
        keep, seed, offset = stream
        return keep, b.convert(self.dropped.factor, "f32"), seed, offset

    def _rescaled(self, b: Builder, gradient: SSAValue, of: Attention) -> SSAValue:
        """Rescale a gradient from the scales of the scores and of dropout to its scales in the module. The backward
        pass may read a run-time number that equals the one of the forward pass, but is another value."""
        factors: list[SSAValue] = []
        scale = self.gradient_scale
        if of.dropout is not None and self.backward_factor is not None:
            factors.append(_quotient(b, b.convert(self.backward_factor, "f32"), of.dropout[1]))
        if of.factor is None:
            assert isinstance(scale, float)
            factors += [b.constant(scale / of.scale, "f32")] if scale != of.scale else []
        elif isinstance(scale, tuple):
            factors.append(_quotient(b, _inverse(b, b.convert(scale[0], "f32"), scale[1]), of.factor))
        else:
            factors.append(_quotient(b, b.constant(scale, "f32"), of.factor))
        return _times(b, gradient, reduce(b.mul, factors)) if factors else gradient


def _quotient(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """x / y, and 1 where they are equal."""
    return b.select(b.compare("EQ", x, y), b.constant(1.0, "f32"), b.div(x, y))


def _inverse(b: Builder, x: SSAValue, inverse: bool) -> SSAValue:
    return b.div(b.constant(1.0, "f32"), x) if inverse else x


def _times(b: Builder, x: SSAValue, factor: SSAValue) -> SSAValue:
    wide = b.mul(b.convert(x, "f32"), b.broadcast_to(factor, shape_of(x)))
    return b.convert(wide, dtype_of(x))


def _first(block: Block, ops: list[Operation]) -> Operation:
    members = set(ops)
    return next(op for op in block.ops if op in members)


def match(op: DivOp) -> Match | None:
    """The attention whose softmax ends in `op`; None if there is none, or if something else uses its inner values."""
    of = scores(op)
    if of is None:
        return None
    if positions(of.visible) is None or of.hidden is None:
        return None
    attention = Match(of, set(of.inside))
    uses = _uses(op.results[0], attention.inside)
    for use, x in uses:
        dropout = dropped_from(use, x) if isinstance(use, MulOp) else None
        if dropout is not None and drawn(dropout.mask) is not None:
            attention.dropped = dropout
            attention.inside |= dropout.inside
            uses = [other for other in uses if other[0] is not use] + _uses(dropout.result, attention.inside)
            break
    muls = {use for use, _ in uses if isinstance(use, MulOp)}
    for use, x in uses:
        if use in muls:
            continue
        product = product_with(use, x) if isinstance(use, DotGeneralOp) else None
        if product is None or (attention.output if product.over == "k" else attention.grad_value) is not None:
            return None
        if product.over == "k":
            attention.output = product
        else:
            attention.grad_value = product
    if muls and not _softmax_backward(attention, muls):
        return None
    if attention.output is not None:
        attention.value = attention.output.other if attention.value is None else attention.value
        if not same(attention.value, attention.output.other):
            return None
    if attention.grad_value is not None:
        attention.grad = attention.grad_value.other if attention.grad is None else attention.grad
        if not same(attention.grad, attention.grad_value.other):
            return None
    products = (attention.output, attention.grad_value, attention.grad_query, attention.grad_key)
    if attention.dropped is not None and not _all_dropped(attention):
        return None
    attention.replaced = [product.op for product in products if product is not None]
    return attention if attention.value is not None and _closed(attention) else None


def _uses(x: SSAValue, inside: set[Operation]) -> list[tuple[Operation, SSAValue]]:
    """Return the uses of a value, and of conversions and views of it, as (op, the value it uses). Add these conversions
    and views to `inside`."""
    users: dict[tuple[Operation, SSAValue], None] = {}
    for use in x.uses:
        op = use.operation
        views = isinstance(op, ReshapeOp) and is_view(shape_of(x), shape_of(op.results[0]))
        if views or isinstance(op, ConvertOp):
            inside.add(op)
            users |= dict.fromkeys(_uses(op.results[0], inside))
        else:
            users[op, x] = None
    return list(users)


def _all_dropped(attention: Match) -> bool:
    """Whether both products of the probabilities use the probabilities after dropout."""
    assert attention.dropped is not None
    products = [x.op for x in (attention.output, attention.grad_value) if x is not None]
    return all(any(source(x) is attention.dropped.result for x in product.operands) for product in products)


def _softmax_backward(attention: Match, muls: set[MulOp]) -> bool:
    """Match (g - Σ g·P)·P, with g = grad·valueᵀ before it, and the gradients of query and key after it."""
    probabilities = attention.of.probabilities.results[0]
    for outer in muls:
        for shifted, y in ((outer.lhs, outer.rhs), (outer.rhs, outer.lhs)):
            owner = shifted.owner
            common = row(owner.rhs, "add") if isinstance(owner, SubOp) else None
            if not isinstance(owner, SubOp) or common is None or source(y) is not probabilities:
                continue
            inner = common[0].owner
            if not isinstance(inner, MulOp) or muls != {outer, inner}:
                continue
            g, sides = owner.lhs, (inner.lhs, inner.rhs)
            if g in sides and any(source(x) is probabilities for x in sides if x is not g):
                attention.inside |= {outer, inner, owner, *common[1]}
                return _probability_gradient(attention, g) and _gradients(attention, outer.results[0])
    return False


def _probability_gradient(attention: Match, g: SSAValue) -> bool:
    """Match g = grad·valueᵀ, possibly with dropout applied to it."""
    last = source(g).owner
    dropout = dropped(last) if isinstance(last, MulOp) and attention.dropped is not None else None
    if (dropout is None) != (attention.dropped is None):
        return False
    if dropout is not None and attention.dropped is not None:
        if dropout.mask is not attention.dropped.mask:
            return False
        attention.inside |= dropout.inside
        attention.backward_factor = dropout.factor
        _between(attention, g, dropout.result)
        g = dropout.x
    dot = source(g).owner
    sides = scores_of(dot) if isinstance(dot, DotGeneralOp) else None
    if sides is None:
        return False
    attention.grad, attention.value = sides
    assert isinstance(dot, DotGeneralOp)
    _between(attention, g, dot.results[0])
    attention.inside.add(dot)
    return True


def _between(attention: Match, x: SSAValue, start: SSAValue) -> None:
    """Add the conversions and views on the way from `start` to `x` to `inside`."""
    while x is not start:
        assert isinstance(x.owner, Operation)
        attention.inside.add(x.owner)
        x = x.owner.operands[0]


def _gradients(attention: Match, grad_scores: SSAValue) -> bool:
    """Match the ops from the gradient of the scores to the gradients of query and key: masks, the scale, two
    products."""
    number, divides = 1.0, False
    factor: SSAValue | None = None
    while True:
        uses = _uses(grad_scores, attention.inside)
        op, x = uses[0] if uses else (None, grad_scores)
        if len(uses) != 1 or op is None or isinstance(op, DotGeneralOp):
            break
        if isinstance(op, SelectOp) and op.operands[0] in attention.of.masks:
            if {splat(operand) for operand in op.operands[1:] if operand is not x} != {0}:
                return False
            attention.unmasked += 1
        elif isinstance(op, MulOp | DivOp) and (scaled := scaling(op)) is not None and scaled[0] is x:
            by = scaled[1]
            if not isinstance(by, SSAValue):
                number = number / by if isinstance(op, DivOp) else number * by
            elif factor is None:
                factor, divides = by, isinstance(op, DivOp)
            else:
                return False
        else:
            return False
        attention.inside.add(op)
        grad_scores = op.results[0]
    if (factor is None) != (attention.of.factor is None) or (factor is not None and number != 1.0):
        return False
    if attention.of.hidden != "zeros" and (attention.unmasked or len(attention.of.hiding)) != len(attention.of.hiding):
        return False
    attention.gradient_scale = number if factor is None else (factor, divides)
    for op, x in uses:
        product = product_with(op, x) if isinstance(op, DotGeneralOp) else None
        if product is None:
            return False
        is_query = product.over == "k"
        matched, factor_of = (
            (attention.grad_query, attention.of.key) if is_query else (attention.grad_key, attention.of.query)
        )
        if matched is not None or not same(product.other, factor_of):
            return False
        if is_query:
            attention.grad_query = product
        else:
            attention.grad_key = product
    return bool(uses)


def _closed(attention: Match) -> bool:
    """Whether the ops inside are used only by each other and by the products to replace."""
    allowed = attention.inside | set(attention.replaced)
    return all(use.operation in allowed for op in attention.inside for result in op.results for use in result.uses)
