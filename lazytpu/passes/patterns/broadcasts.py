"""Patterns that compute before broadcasting: an elementwise op of broadcasts is the broadcast of the op's result.

An optimizer's scalars arrive at run time as 0-d numbers and are applied to every parameter. A value computed from them
alone is then computed once, as a number, instead of at the size of each parameter; `cse` merges the remaining copies.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, op_type_rewrite_pattern

from lazytpu.ir.base import TensorOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp
from lazytpu.ir.dialect import OPS
from lazytpu.ir.pointwise import BinaryOp, ClampOp, CompareOp, ConvertOp, SelectOp, UnaryOp
from lazytpu.ir.shape import BroadcastInDimOp, ReshapeOp, ReverseOp, SliceOp, TransposeOp
from lazytpu.ir.types import dtype_of, ints, shape_of, tensor_type
from lazytpu.passes.patterns.rewriting import Pattern, Table, defined_by, replace, splat

ELEMENTWISE: tuple[type[TensorOp], ...] = (
    *(kind for kind in OPS.values() if issubclass(kind, UnaryOp | BinaryOp)),
    CompareOp,
    ConvertOp,
    SelectOp,
    ClampOp,
)


class ElementwiseOfRepeated(Pattern):
    """add(broadcast(x), broadcast(y)) -> broadcast(add(x, y)) for equal broadcasts; constants fit any broadcast."""

    MADE_BY = frozenset((BroadcastInDimOp,))

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        assert isinstance(op, TensorOp)
        operands = tuple(op.operands)
        repeated = [broadcast for x in operands if (broadcast := defined_by(x, BroadcastInDimOp))]
        if not repeated or any(type(x.owner) not in (BroadcastInDimOp, ConstantOp) for x in operands):
            return
        first = repeated[0]
        source, wide, dims = shape_of(first.operands[0]), shape_of(first.results[0]), ints(first.dims)
        if shape_of(op.results[0]) != wide:
            return
        for repeat in repeated[1:]:
            if (shape_of(repeat.operands[0]), shape_of(repeat.results[0]), ints(repeat.dims)) != (source, wide, dims):
                return

        def build(b: Builder) -> SSAValue:
            result = tensor_type(dtype_of(op.results[0]), source)
            narrowed = [_narrow(b, x, source) for x in operands]
            narrow = b.op(type(op), narrowed, (result,), op.properties).results[0]
            return b.broadcast_in_dim(narrow, wide, dims)

        replace(op, rewriter, build)


def _narrow(b: Builder, x: SSAValue, shape: tuple[int, ...]) -> SSAValue:
    """The operand of a broadcast, or for a constant a splat of `shape`."""
    if broadcast := defined_by(x, BroadcastInDimOp):
        return broadcast.operand
    number = splat(x)
    assert number is not None
    return b.constant(number, dtype_of(x), shape)


class SelectByRepeated(Pattern):
    """select(broadcast(p), x, y) -> select(p, x, y) for a 0-d p."""

    MADE_BY = frozenset((BroadcastInDimOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SelectOp, rewriter: PatternRewriter, /) -> None:
        pred, on_true, on_false = op.operands
        inner = defined_by(pred, BroadcastInDimOp)
        if inner is not None and shape_of(inner.operands[0]) == ():
            replace(op, rewriter, lambda b: b.select(inner.operands[0], on_true, on_false))


class ClampByRepeated(Pattern):
    """clamp(broadcast(low), x, broadcast(high)) -> clamp(low, x, high) for 0-d bounds."""

    MADE_BY = frozenset((BroadcastInDimOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ClampOp, rewriter: PatternRewriter, /) -> None:
        low, x, high = op.operands
        narrow_low, narrow_high = _number(low), _number(high)
        if narrow_low is not low or narrow_high is not high:
            replace(op, rewriter, lambda b: b.clamp(narrow_low, x, narrow_high))


def _number(x: SSAValue) -> SSAValue:
    """The 0-d value that x is a broadcast of, or x itself."""
    inner = defined_by(x, BroadcastInDimOp)
    return inner.operands[0] if inner is not None and shape_of(inner.operands[0]) == () else x


class MoveOfRepeatedNumber(Pattern):
    """reshape(broadcast(x)) -> broadcast(x) for a 0-d x; likewise for transpose, slice and reverse."""

    MADE_BY = frozenset((BroadcastInDimOp,))

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        x = op.operands[0]
        number = _number(x)
        if number is not x:
            replace(op, rewriter, lambda b: b.broadcast_in_dim(number, shape_of(op.results[0]), ()))


_repeated, _moved = ElementwiseOfRepeated(), MoveOfRepeatedNumber()

PATTERNS: Table = {
    **dict.fromkeys(ELEMENTWISE, (_repeated,)),
    SelectOp: (_repeated, SelectByRepeated()),
    ClampOp: (_repeated, ClampByRepeated()),
    **dict.fromkeys((TransposeOp, ReshapeOp, SliceOp, ReverseOp), (_moved,)),
}
