"""`fuse-attention`: attention as models spell it, forward and backward, into attention ops.

    %0 = lazytpu.dot_general %q, %k                  query·keyᵀ
    %1 = lazytpu.select %mask, lazytpu.mul(%0, s), -inf
    %2 = softmax of %1 over the keys           ->    %3 = lazytpu.attention %q, %k, %v causal = true scale = s
    %3 = lazytpu.dot_general %2, %v
    %4 = lazytpu.dot_general %g, %v                  %5, %6, %7 = lazytpu.attention_backward %g, %q, %k, %v ...
    %8 = gradient of the softmax, from %4 and %2
    %5, %6 = products of %8 with %k and %q, %7 of %2 with %g

Products may have their dimensions in any order, batch and heads merged or apart; scores may be scaled by a number,
masked by selects and by adding 0 and -inf (masks.py says what is read) or any floats, and converted
between float dtypes; probabilities may be dropped (dropout.py). The backward pass, where there is
one, is matched with its forward one, or neither is.

Needs: canonical form. Guarantees: only what has enough scores for `flash-attention` is rewritten, and only when nothing
else uses what is no longer computed, such as the probabilities. Scores stay f32 where the model rounded them to bf16 in
between. A query that sees no key gives NaN or the mean of the values as in the model; where it gives something else,
because masks are of two kinds, and some query may see no key, the model is left as it is.
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
    Operand,
    Product,
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
    """Spelled attention into attention ops."""

    name = "fuse-attention"
    least: int = LEAST

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for each in [each for each in op.walk() if isinstance(each, DivOp)]:
            try:
                found = match(each)
                if found is not None and found.refusal(self.least) is None:
                    found.rewrite()
            except Exception as error:
                note_op(error, each)
                raise


@dataclass
class Match:
    """One attention: its scores, the products that are replaced, and all other ops, which nothing else uses."""

    of: Scores
    inside: set[Operation]
    output: Product | None = None
    of_value: Product | None = None
    of_query: Product | None = None
    of_key: Product | None = None
    grad: Operand | None = None
    value: Operand | None = None
    dropped: Dropped | None = None
    "What dropout leaves of the probabilities."
    back: SSAValue | None = None
    "The factor of dropout in the backward pass: to the user that of the forward one, not in the module."
    unmasked: int = 0
    "How many masks the gradient of the scores goes through."
    ratio: float | tuple[SSAValue, bool] = 1.0
    "The scale that the gradients have: a number, or a run-time number and whether it divides."
    ends: list[Operation] = field(default_factory=list[Operation])

    def refusal(self, least: int) -> str | None:
        """Why it is left as it is."""
        value = self.value
        assert value is not None
        dtypes = {dtype_of(x.value) for x in (self.of.query, self.of.key, value)}
        if len(dtypes) > 1:
            return f"query, key and value are of different dtypes: {', '.join(sorted(dtypes))}"
        batch, heads = self.heads
        by_blocks = self.of.bias is not None or self.dropped is not None
        return refusal_of(dtypes.pop(), (batch, heads, *self.of.shape[-2:]), least * (BY_BLOCKS if by_blocks else 1))

    @property
    def heads(self) -> tuple[int, int]:
        """(batch, heads): the last batch dim counts as heads, the others as batch; a single one as batch."""
        lead = self.of.shape[:-2]
        return (prod(lead[:-1]), lead[-1]) if len(lead) > 1 else (prod(lead), 1)

    def rewrite(self) -> None:
        """Build the ops and put their results in the place of the products."""
        block = self.of.product.parent
        assert block is not None
        first = _first(block, self.ends)
        b = RewriteBuilder(first, PatternRewriter(first))
        of = self._attention(b)
        if self.output is not None:
            self._replace(self.output, b.attention(of))
        gradients = [x for x in (self.of_query, self.of_key, self.of_value) if x is not None]
        if not gradients:
            return
        assert self.grad is not None
        first = _first(block, [x.op for x in gradients])
        b = RewriteBuilder(first, PatternRewriter(first))
        made = b.attention_backward(self.grad.by_heads(b, "q", *self.heads), of)
        for product, gradient in zip((self.of_query, self.of_key, self.of_value), made, strict=True):
            if product is not None:
                self._replace(product, gradient, None if product is self.of_value else of)

    def _replace(self, product: Product, x: SSAValue, scaled: Attention | None = None) -> None:
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
        known = positions(visible)
        assert known is not None
        offset, window = known
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
            added=hidden != "zeros" and self.of_query is not None and not self.unmasked,
        )

    def _dropout(self, b: Builder) -> tuple[SSAValue, SSAValue, SSAValue, SSAValue] | None:
        stream = None if self.dropped is None else drawn(self.dropped.mask)
        if self.dropped is None or stream is None:
            return None
        keep, seed, offset = stream
        return keep, b.convert(self.dropped.factor, "f32"), seed, offset

    def _rescaled(self, b: Builder, gradient: SSAValue, of: Attention) -> SSAValue:
        """A gradient with the scales that it has in the module, in the place of the scores' and of dropout's: two
        run-time numbers are one number to the user, but not in the module."""
        by: list[SSAValue] = []
        if of.dropout is not None and self.back is not None:
            by.append(_quotient(b, b.convert(self.back, "f32"), of.dropout[1]))
        if of.factor is None:
            assert isinstance(self.ratio, float)
            by += [b.constant(self.ratio / of.scale, "f32")] if self.ratio != of.scale else []
        elif isinstance(self.ratio, tuple):
            by.append(_quotient(b, _inverse(b, b.convert(self.ratio[0], "f32"), self.ratio[1]), of.factor))
        else:
            by.append(_quotient(b, b.constant(self.ratio, "f32"), of.factor))
        return _times(b, gradient, reduce(b.mul, by)) if by else gradient


def _quotient(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """x / y, 1 where they are equal."""
    return b.select(b.compare("EQ", x, y), b.constant(1.0, "f32"), b.div(x, y))


def _inverse(b: Builder, x: SSAValue, inverse: bool) -> SSAValue:
    return b.div(b.constant(1.0, "f32"), x) if inverse else x


def _times(b: Builder, x: SSAValue, factor: SSAValue) -> SSAValue:
    wide = b.mul(b.convert(x, "f32"), b.broadcast_to(factor, shape_of(x)))
    return b.convert(wide, dtype_of(x))


def _first(block: Block, ops: list[Operation]) -> Operation:
    wanted = set(ops)
    return next(op for op in block.ops if op in wanted)


def match(op: DivOp) -> Match | None:
    """The attention whose softmax ends in `op`; None when it is none, or something else uses what is in between."""
    found = scores(op)
    if found is None:
        return None
    if positions(found.visible) is None or found.hidden is None:
        return None
    made = Match(found, set(found.inside))
    uses = _uses(op.results[0], made.inside)
    for use, x in uses:
        left = dropped_from(use, x) if isinstance(use, MulOp) else None
        if left is not None and drawn(left.mask) is not None:
            made.dropped = left
            made.inside |= left.inside
            uses = [each for each in uses if each[0] is not use] + _uses(left.result, made.inside)
            break
    muls = {use for use, _ in uses if isinstance(use, MulOp)}
    for use, x in uses:
        if use in muls:
            continue
        product = product_with(use, x) if isinstance(use, DotGeneralOp) else None
        if product is None or (made.output if product.over == "k" else made.of_value) is not None:
            return None
        if product.over == "k":
            made.output = product
        else:
            made.of_value = product
    if muls and not _softmax_backward(made, muls):
        return None
    if made.output is not None:
        made.value = made.output.other if made.value is None else made.value
        if not same(made.value, made.output.other):
            return None
    if made.of_value is not None:
        made.grad = made.of_value.other if made.grad is None else made.grad
        if not same(made.grad, made.of_value.other):
            return None
    replaced = (made.output, made.of_value, made.of_query, made.of_key)
    if made.dropped is not None and not _all_dropped(made):
        return None
    made.ends = [product.op for product in replaced if product is not None]
    return made if made.value is not None and _closed(made) else None


def _uses(x: SSAValue, inside: set[Operation]) -> list[tuple[Operation, SSAValue]]:
    """What uses a value, or conversions and views of it, which are added to `inside`: (op, which of these it uses)."""
    found: dict[tuple[Operation, SSAValue], None] = {}
    for use in x.uses:
        op = use.operation
        views = isinstance(op, ReshapeOp) and is_view(shape_of(x), shape_of(op.results[0]))
        if views or isinstance(op, ConvertOp):
            inside.add(op)
            found |= dict.fromkeys(_uses(op.results[0], inside))
        else:
            found[op, x] = None
    return list(found)


def _all_dropped(made: Match) -> bool:
    """Whether both products of the probabilities have what dropout left of them."""
    assert made.dropped is not None
    products = [x.op for x in (made.output, made.of_value) if x is not None]
    return all(any(source(x) is made.dropped.result for x in product.operands) for product in products)


def _softmax_backward(made: Match, muls: set[MulOp]) -> bool:
    """Match (g - Σ g·P)·P, g = grad·valueᵀ before it, and the gradients of query and key after it."""
    probabilities = made.of.probabilities.results[0]
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
                made.inside |= {outer, inner, owner, *common[1]}
                return _spread(made, g) and _gradients(made, outer.results[0])
    return False


def _spread(made: Match, g: SSAValue) -> bool:
    """Match g = grad·valueᵀ, or what dropout leaves of it."""
    last = source(g).owner
    left = dropped(last) if isinstance(last, MulOp) and made.dropped is not None else None
    if (left is None) != (made.dropped is None):
        return False
    if left is not None and made.dropped is not None:
        if left.mask is not made.dropped.mask:
            return False
        made.inside |= left.inside
        made.back = left.factor
        _between(made, g, left.result)
        g = left.x
    dot = source(g).owner
    sides = scores_of(dot) if isinstance(dot, DotGeneralOp) else None
    if sides is None:
        return False
    made.grad, made.value = sides
    assert isinstance(dot, DotGeneralOp)
    _between(made, g, dot.results[0])
    made.inside.add(dot)
    return True


def _between(made: Match, x: SSAValue, start: SSAValue) -> None:
    """Add the conversions and views to what is inside that made `x` of `start`."""
    while x is not start:
        assert isinstance(x.owner, Operation)
        made.inside.add(x.owner)
        x = x.owner.operands[0]


def _gradients(made: Match, of_scores: SSAValue) -> bool:
    """Match the way from the gradient of the scores to those of query and key: masks, the scale, two products."""
    number, divides = 1.0, False
    factor: SSAValue | None = None
    while True:
        uses = _uses(of_scores, made.inside)
        op, x = uses[0] if uses else (None, of_scores)
        if len(uses) != 1 or op is None or isinstance(op, DotGeneralOp):
            break
        if isinstance(op, SelectOp) and op.operands[0] in made.of.masks:
            if {splat(operand) for operand in op.operands[1:] if operand is not x} != {0}:
                return False
            made.unmasked += 1
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
        made.inside.add(op)
        of_scores = op.results[0]
    if (factor is None) != (made.of.factor is None) or (factor is not None and number != 1.0):
        return False
    if made.of.hidden != "zeros" and (made.unmasked or len(made.of.hiding)) != len(made.of.hiding):
        return False
    made.ratio = number if factor is None else (factor, divides)
    for op, x in uses:
        product = product_with(op, x) if isinstance(op, DotGeneralOp) else None
        if product is None:
            return False
        of_query = product.over == "k"
        own, other = (made.of_query, made.of.key) if of_query else (made.of_key, made.of.query)
        if own is not None or not same(product.other, other):
            return False
        if of_query:
            made.of_query = product
        else:
            made.of_key = product
    return bool(uses)


def _closed(made: Match) -> bool:
    """Whether only the products that are replaced, and ops inside, use what is inside."""
    allowed = made.inside | set(made.ends)
    return all(use.operation in allowed for op in made.inside for result in op.results for use in result.uses)
