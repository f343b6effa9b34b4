"""Elementwise ops on two operands of the same type, which is also the type of the result unless a class says
otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import AnyTensorType
from xdsl.irdl import irdl_op_definition, operand_def, result_def, traits_def
from xdsl.traits import Commutative

from lazytpu.ir.base import TENSOR, TensorOp, check_dtype
from lazytpu.ir.types import BOOL, COMPLEX, COMPLEX_OF, FLOATS, INTEGERS, dtype_of, shape_of, tensor_type


class BinaryOp(TensorOp):
    """An elementwise op on two operands of the same type."""

    DOMAIN: ClassVar[frozenset[str]]
    "The dtypes the operands may have."

    lhs = operand_def(TENSOR)
    rhs = operand_def(TENSOR)
    result = result_def(TENSOR)

    @classmethod
    def result_of(cls, x: AnyTensorType, y: AnyTensorType) -> AnyTensorType:
        """The result type for operands of types `x` and `y`."""
        if x != y:
            raise ValueError(f"operands must have the same type; got {x} and {y}")
        check_dtype(dtype_of(x), cls.DOMAIN, "operands")
        return x

    def infer(self) -> Sequence[AnyTensorType]:
        return (self.result_of(self.operand_type(0), self.operand_type(1)),)


class AnyBinaryOp(BinaryOp):
    DOMAIN: ClassVar = BOOL | INTEGERS | FLOATS | COMPLEX


class NumberBinaryOp(BinaryOp):
    DOMAIN: ClassVar = INTEGERS | FLOATS | COMPLEX


class RealBinaryOp(BinaryOp):
    DOMAIN: ClassVar = INTEGERS | FLOATS


class OrderedBinaryOp(BinaryOp):
    """Defined for ordered dtypes, that is all but complex."""

    DOMAIN: ClassVar = BOOL | INTEGERS | FLOATS


class AnalyticBinaryOp(BinaryOp):
    DOMAIN: ClassVar = FLOATS | COMPLEX


class FloatBinaryOp(BinaryOp):
    DOMAIN: ClassVar = FLOATS


class IntegerBinaryOp(BinaryOp):
    DOMAIN: ClassVar = INTEGERS


class BitBinaryOp(BinaryOp):
    DOMAIN: ClassVar = BOOL | INTEGERS


@irdl_op_definition
class AddOp(AnyBinaryOp):
    """x + y; logical or of i1."""

    name = "lazytpu.add"
    traits = traits_def(Commutative())


@irdl_op_definition
class SubOp(NumberBinaryOp):
    """x - y."""

    name = "lazytpu.sub"


@irdl_op_definition
class MulOp(AnyBinaryOp):
    """x * y; logical and of i1."""

    name = "lazytpu.mul"
    traits = traits_def(Commutative())


@irdl_op_definition
class DivOp(NumberBinaryOp):
    """x / y; integers truncate toward zero."""

    name = "lazytpu.div"


@irdl_op_definition
class RemOp(RealBinaryOp):
    """Remainder of the truncated division, with the sign of x."""

    name = "lazytpu.rem"


@irdl_op_definition
class PowOp(NumberBinaryOp):
    """x^y."""

    name = "lazytpu.pow"


@irdl_op_definition
class Atan2Op(AnalyticBinaryOp):
    """Angle of the point (y, x): the first operand is the ordinate."""

    name = "lazytpu.atan2"


@irdl_op_definition
class MaxOp(OrderedBinaryOp):
    """The greater; NaN if either is NaN. Of the two zeros it is x, so it does not commute."""

    name = "lazytpu.max"


@irdl_op_definition
class MinOp(OrderedBinaryOp):
    """The lesser; NaN if either is NaN. Of the two zeros it is x, so it does not commute."""

    name = "lazytpu.min"


@irdl_op_definition
class AndOp(BitBinaryOp):
    """Logical and of i1, bitwise and of integers."""

    name = "lazytpu.and"
    traits = traits_def(Commutative())


@irdl_op_definition
class OrOp(BitBinaryOp):
    """Logical or of i1, bitwise or of integers."""

    name = "lazytpu.or"
    traits = traits_def(Commutative())


@irdl_op_definition
class XorOp(BitBinaryOp):
    """Logical xor of i1, bitwise xor of integers."""

    name = "lazytpu.xor"
    traits = traits_def(Commutative())


@irdl_op_definition
class ShiftLeftOp(IntegerBinaryOp):
    """x << y; 0 when y is at least the bit width."""

    name = "lazytpu.shift_left"


@irdl_op_definition
class ShiftRightArithmeticOp(IntegerBinaryOp):
    """x >> y, shifting in copies of the sign bit."""

    name = "lazytpu.shift_right_arithmetic"


@irdl_op_definition
class ShiftRightLogicalOp(IntegerBinaryOp):
    """x >> y, shifting in zeros."""

    name = "lazytpu.shift_right_logical"


@irdl_op_definition
class NextAfterOp(FloatBinaryOp):
    """The floating-point number after x in the direction of y."""

    name = "lazytpu.next_after"


@irdl_op_definition
class PolygammaOp(FloatBinaryOp):
    """The derivative of digamma of order x (a whole number) at y."""

    name = "lazytpu.polygamma"


@irdl_op_definition
class ZetaOp(FloatBinaryOp):
    """Hurwitz zeta function of x at y."""

    name = "lazytpu.zeta"


@irdl_op_definition
class ComplexOp(BinaryOp):
    """The complex number with real part x and imaginary part y (f32 or f64)."""

    DOMAIN: ClassVar = frozenset(COMPLEX_OF)

    name = "lazytpu.complex"

    @classmethod
    def result_of(cls, x: AnyTensorType, y: AnyTensorType) -> AnyTensorType:
        super().result_of(x, y)
        return tensor_type(COMPLEX_OF[dtype_of(x)], shape_of(x))
