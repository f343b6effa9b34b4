"""Patterns of select, compare and the parts of complex numbers."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.pattern_rewriter import PatternRewriter, op_type_rewrite_pattern

from lazytpu.ir.binary import ComplexOp
from lazytpu.ir.constants import ConstantOp
from lazytpu.ir.pointwise import CompareOp, SelectOp
from lazytpu.ir.types import dtype_of, is_float, shape_of
from lazytpu.ir.unary import ImagOp, NotOp, RealOp
from lazytpu.passes.patterns.rewriting import Pattern, Table, defined_by, replace, splat

OPPOSITE = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}


class SelectKnown(Pattern):
    """select(true, x, y) -> x, select(p, x, x) -> x."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SelectOp, rewriter: PatternRewriter, /) -> None:
        pred, on_true, on_false = op.operands
        truth = splat(pred)
        if truth is not None:
            rewriter.replace(op, (), (on_true if truth else on_false,))
        elif on_true is on_false:
            rewriter.replace(op, (), (on_true,))


class SelectByNot(Pattern):
    """select(not(p), x, y) -> select(p, y, x)."""

    MADE_BY = frozenset((NotOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SelectOp, rewriter: PatternRewriter, /) -> None:
        pred, on_true, on_false = op.operands
        if inverted := defined_by(pred, NotOp):
            replace(op, rewriter, lambda b: b.select(inverted.operands[0], on_false, on_true))


class SelectTruth(Pattern):
    """select(p, true, false) -> p, select(p, false, true) -> not(p), for a p of the result's shape."""

    MADE_BY = frozenset((ConstantOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SelectOp, rewriter: PatternRewriter, /) -> None:
        pred, on_true, on_false = op.operands
        if pred.type != on_true.type:
            return
        branches = splat(on_true), splat(on_false)
        if branches == (True, False):
            rewriter.replace(op, (), (pred,))
        elif branches == (False, True):
            replace(op, rewriter, lambda b: b.not_(pred))


class SelectOfSelect(Pattern):
    """select(p, select(p, x, y), z) -> select(p, x, z), and likewise for the third operand."""

    MADE_BY = frozenset((SelectOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SelectOp, rewriter: PatternRewriter, /) -> None:
        pred, on_true, on_false = op.operands
        first, second = on_true, on_false
        if (inner := defined_by(on_true, SelectOp)) and inner.operands[0] is pred:
            first = inner.operands[1]
        if (inner := defined_by(on_false, SelectOp)) and inner.operands[0] is pred:
            second = inner.operands[2]
        if first is not on_true or second is not on_false:
            replace(op, rewriter, lambda b: b.select(pred, first, second))


class NotOfCompare(Pattern):
    """not(x < y) -> x >= y, except for floats, where both are false for NaN; not(x == y) -> x != y for all dtypes."""

    MADE_BY = frozenset((CompareOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: NotOp, rewriter: PatternRewriter, /) -> None:
        compared = defined_by(op.operands[0], CompareOp)
        if compared is None:
            return
        x, y = compared.operands
        direction = compared.direction.data
        if direction in ("EQ", "NE") or not is_float(dtype_of(x)):
            replace(op, rewriter, lambda b: b.compare(OPPOSITE[direction], x, y))


class PartOfComplex(Pattern):
    """real(complex(x, y)) -> x, imag(complex(x, y)) -> y; real(x) -> x and imag(x) -> 0 for a real x."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: RealOp | ImagOp, rewriter: PatternRewriter, /) -> None:
        x = op.operands[0]
        dtype = dtype_of(x)
        if made_from := defined_by(x, ComplexOp):
            rewriter.replace(op, (), (made_from.operands[0 if isinstance(op, RealOp) else 1],))
        elif is_float(dtype) and isinstance(op, RealOp):
            rewriter.replace(op, (), (x,))
        elif is_float(dtype):
            replace(op, rewriter, lambda b: b.constant(0.0, dtype, shape_of(x)))


class ComplexOfParts(Pattern):
    """complex(real(z), imag(z)) -> z."""

    MADE_BY = frozenset((RealOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ComplexOp, rewriter: PatternRewriter, /) -> None:
        real, imag = defined_by(op.operands[0], RealOp), defined_by(op.operands[1], ImagOp)
        if real is None or imag is None:
            return
        z: SSAValue = real.operands[0]
        if z is imag.operands[0] and z.type == op.results[0].type:
            rewriter.replace(op, (), (z,))


PATTERNS: Table = {
    SelectOp: (SelectKnown(), SelectByNot(), SelectTruth(), SelectOfSelect()),
    NotOp: (NotOfCompare(),),
    RealOp: (PartOfComplex(),),
    ImagOp: (PartOfComplex(),),
    ComplexOp: (ComplexOfParts(),),
}
