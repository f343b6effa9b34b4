"""Patterns of arithmetic: neutral and absorbing numbers, negations, equal operands.

Exactness for floats: x + 0.0 turns -0.0 into 0.0, so only x + -0.0 and x - 0.0 are x; x * 0.0 and x - x are NaN for an
infinite x. Complex products mix the parts (inf * 0 is NaN), so complex numbers are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, op_type_rewrite_pattern

from lazytpu.ir.binary import (
    AddOp,
    AndOp,
    BinaryOp,
    DivOp,
    MaxOp,
    MinOp,
    MulOp,
    OrOp,
    PowOp,
    ShiftLeftOp,
    ShiftRightArithmeticOp,
    ShiftRightLogicalOp,
    SubOp,
    XorOp,
)
from lazytpu.ir.constants import ConstantOp
from lazytpu.ir.types import bitwidth, dtype_of, is_complex, is_float, is_unsigned, shape_of
from lazytpu.ir.unary import AbsOp, NegOp, NotOp
from lazytpu.passes.patterns.rewriting import Pattern, Table, defined_by, replace, splat


def _zero(dtype: str) -> float | None:
    return 0


def _one(dtype: str) -> float | None:
    return 1


def _zero_of_addition(dtype: str) -> float | None:
    return -0.0 if is_float(dtype) else 0


def _exact_zero(dtype: str) -> float | None:
    return None if is_float(dtype) else 0


def _all_bits(dtype: str) -> float | None:
    if dtype == "i1":
        return 1
    return 2 ** bitwidth(dtype) - 1 if is_unsigned(dtype) else -1


def _least(dtype: str) -> float | None:
    if is_float(dtype):
        return -math.inf
    return 0 if dtype == "i1" or is_unsigned(dtype) else -(2 ** (bitwidth(dtype) - 1))


def _greatest(dtype: str) -> float | None:
    if is_float(dtype):
        return math.inf
    signed = dtype != "i1" and not is_unsigned(dtype)
    return 2 ** (bitwidth(dtype) - signed) - 1


def _one_for_i1(dtype: str) -> float | None:
    return 1 if dtype == "i1" else None


NEUTRAL: dict[type[BinaryOp], Callable[[str], float | None]] = {
    AddOp: _zero_of_addition,
    SubOp: _zero,
    MulOp: _one,
    DivOp: _one,
    PowOp: _one,
    MaxOp: _least,
    MinOp: _greatest,
    AndOp: _all_bits,
    OrOp: _zero,
    XorOp: _zero,
    ShiftLeftOp: _zero,
    ShiftRightArithmeticOp: _zero,
    ShiftRightLogicalOp: _zero,
}
"The number n with `x op n == x` for every x of a dtype; for commutative ops also `n op x == x`."

ABSORBING: dict[type[BinaryOp], Callable[[str], float | None]] = {
    AddOp: _one_for_i1,
    MulOp: _exact_zero,
    AndOp: _zero,
    OrOp: _all_bits,
}
"The number n with `x op n == n` for every x of a dtype (all these ops are commutative)."

COMMUTATIVE = (AddOp, MulOp, MaxOp, MinOp, AndOp, OrOp, XorOp)


def is_number(value: SSAValue, number: float | None) -> bool:
    """Whether `value` is a splat of `number`, with the same sign of zero."""
    if number is None:
        return False
    element = splat(value)
    if element is None or isinstance(element, complex):
        return False
    return element == number and math.copysign(1, element) == math.copysign(1, number)


class DropNeutralNumber(Pattern):
    """x * 1 -> x, and likewise for the table `NEUTRAL`."""

    MADE_BY = frozenset((ConstantOp,))

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        assert isinstance(op, BinaryOp)
        x, y = op.operands
        constant = defined_by(x, ConstantOp) or defined_by(y, ConstantOp)
        if constant is None or is_complex(dtype_of(x)):
            return
        number = NEUTRAL[type(op)](dtype_of(x))
        if is_number(y, number):
            rewriter.replace(op, (), (x,))
        elif isinstance(op, COMMUTATIVE) and is_number(x, number):
            rewriter.replace(op, (), (y,))


class AbsorbNumber(Pattern):
    """x * 0 -> 0 for integers, and likewise for the table `ABSORBING`."""

    MADE_BY = frozenset((ConstantOp,))

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        assert isinstance(op, BinaryOp)
        constants = [x for x in op.operands if defined_by(x, ConstantOp)]
        if not constants or is_complex(dtype_of(constants[0])):
            return
        number = ABSORBING[type(op)](dtype_of(constants[0]))
        for constant in constants:
            if is_number(constant, number):
                rewriter.replace(op, (), (constant,))
                return


class EqualOperands(Pattern):
    """max(x, x) -> x, and(x, x) -> x; xor(x, x) -> 0; x - x -> 0 for integers."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: MaxOp | MinOp | AndOp | OrOp | XorOp | SubOp, rewriter: PatternRewriter, /) -> None:
        x, y = op.operands
        if x is not y:
            return
        dtype = dtype_of(x)
        if not isinstance(op, XorOp | SubOp):
            rewriter.replace(op, (), (x,))
        elif not is_float(dtype) and not is_complex(dtype):
            replace(op, rewriter, lambda b: b.constant(0, dtype, shape_of(x)))


class TimesMinusOne(Pattern):
    """x * -1 -> -x, x / -1 -> -x."""

    MADE_BY = frozenset((ConstantOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: MulOp | DivOp, rewriter: PatternRewriter, /) -> None:
        x, y = op.operands
        if isinstance(op, MulOp) and is_number(x, -1):
            x, y = y, x
        if is_number(y, -1) and dtype_of(x) != "i1":
            replace(op, rewriter, lambda b: b.neg(x))


class AddOfNegative(Pattern):
    """x + -y -> x - y, -x + y -> y - x, x - -y -> x + y."""

    MADE_BY = frozenset((NegOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AddOp | SubOp, rewriter: PatternRewriter, /) -> None:
        x, y = op.operands
        if negated := defined_by(y, NegOp):
            z = negated.operands[0]
            replace(op, rewriter, lambda b: b.sub(x, z) if isinstance(op, AddOp) else b.add(x, z))
        elif isinstance(op, AddOp) and (negated := defined_by(x, NegOp)):
            z = negated.operands[0]
            replace(op, rewriter, lambda b: b.sub(y, z))


class UndoneTwice(Pattern):
    """-(-x) -> x, not(not(x)) -> x."""

    MADE_BY = frozenset(
        (
            NegOp,
            NotOp,
        )
    )

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: NegOp | NotOp, rewriter: PatternRewriter, /) -> None:
        if inner := defined_by(op.operands[0], type(op)):
            rewriter.replace(op, (), (inner.operands[0],))


class AbsOfSigned(Pattern):
    """|-x| -> |x|, ||x|| -> |x|."""

    MADE_BY = frozenset(
        (
            AbsOp,
            NegOp,
        )
    )

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AbsOp, rewriter: PatternRewriter, /) -> None:
        x = op.operands[0]
        if defined_by(x, AbsOp):
            rewriter.replace(op, (), (x,))
        elif inner := defined_by(x, NegOp):
            replace(op, rewriter, lambda b: b.abs(inner.operands[0]))


_neutral, _absorb, _equal = DropNeutralNumber(), AbsorbNumber(), EqualOperands()

PATTERNS: Table = {
    AddOp: (_neutral, _absorb, AddOfNegative()),
    SubOp: (_neutral, _equal, AddOfNegative()),
    MulOp: (_neutral, _absorb, TimesMinusOne()),
    DivOp: (_neutral, TimesMinusOne()),
    PowOp: (_neutral,),
    MaxOp: (_neutral, _equal),
    MinOp: (_neutral, _equal),
    AndOp: (_neutral, _absorb, _equal),
    OrOp: (_neutral, _absorb, _equal),
    XorOp: (_neutral, _equal),
    ShiftLeftOp: (_neutral,),
    ShiftRightArithmeticOp: (_neutral,),
    ShiftRightLogicalOp: (_neutral,),
    NegOp: (UndoneTwice(),),
    NotOp: (UndoneTwice(),),
    AbsOp: (AbsOfSigned(),),
}
