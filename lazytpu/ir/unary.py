"""Elementwise ops on one operand. The result has the type of the operand unless a class says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import AnyTensorType
from xdsl.irdl import irdl_op_definition, operand_def, result_def

from lazytpu.ir.base import TENSOR, TensorOp, check_dtype
from lazytpu.ir.types import BOOL, COMPLEX, FLOATS, INTEGERS, REAL_OF, SIGNED, dtype_of, shape_of, tensor_type


class UnaryOp(TensorOp):
    """An elementwise op on one operand."""

    DOMAIN: ClassVar[frozenset[str]]
    "The dtypes the operand may have."

    operand = operand_def(TENSOR)
    result = result_def(TENSOR)

    @classmethod
    def result_of(cls, x: AnyTensorType) -> AnyTensorType:
        """The result type for an operand of type `x`."""
        check_dtype(dtype_of(x), cls.DOMAIN)
        return x

    def infer(self) -> Sequence[AnyTensorType]:
        return (self.result_of(self.operand_type(0)),)


class FloatUnaryOp(UnaryOp):
    DOMAIN: ClassVar = FLOATS


class AnalyticUnaryOp(UnaryOp):
    """Defined for real and complex floating point."""

    DOMAIN: ClassVar = FLOATS | COMPLEX


class SignedUnaryOp(UnaryOp):
    DOMAIN: ClassVar = SIGNED | FLOATS | COMPLEX


class NumberUnaryOp(UnaryOp):
    DOMAIN: ClassVar = INTEGERS | FLOATS | COMPLEX


class IntegerUnaryOp(UnaryOp):
    DOMAIN: ClassVar = INTEGERS


class BitUnaryOp(UnaryOp):
    DOMAIN: ClassVar = BOOL | INTEGERS


class RealPartUnaryOp(UnaryOp):
    """Maps complex or real numbers to real ones of the same precision."""

    DOMAIN: ClassVar = FLOATS | COMPLEX

    @classmethod
    def result_of(cls, x: AnyTensorType) -> AnyTensorType:
        dtype = dtype_of(x)
        check_dtype(dtype, cls.DOMAIN)
        return tensor_type(REAL_OF.get(dtype, dtype), shape_of(x))


@irdl_op_definition
class AbsOp(SignedUnaryOp):
    """|x|; for a complex number its magnitude, a real number."""

    name = "lazytpu.abs"

    @classmethod
    def result_of(cls, x: AnyTensorType) -> AnyTensorType:
        dtype = dtype_of(x)
        check_dtype(dtype, cls.DOMAIN)
        return tensor_type(REAL_OF.get(dtype, dtype), shape_of(x))


@irdl_op_definition
class NegOp(NumberUnaryOp):
    """-x; unsigned integers wrap around."""

    name = "lazytpu.neg"


@irdl_op_definition
class SignOp(SignedUnaryOp):
    """-1, 0 or 1 in the dtype of x; keeps NaN and -0.0; x / |x| for a complex number."""

    name = "lazytpu.sign"


@irdl_op_definition
class CeilOp(FloatUnaryOp):
    """The least whole number >= x."""

    name = "lazytpu.ceil"


@irdl_op_definition
class FloorOp(FloatUnaryOp):
    """The greatest whole number <= x."""

    name = "lazytpu.floor"


@irdl_op_definition
class RoundNearestEvenOp(FloatUnaryOp):
    """The nearest whole number, ties to even."""

    name = "lazytpu.round_nearest_even"


@irdl_op_definition
class ExpOp(AnalyticUnaryOp):
    """e^x."""

    name = "lazytpu.exp"


@irdl_op_definition
class Expm1Op(AnalyticUnaryOp):
    """e^x - 1, exact near 0."""

    name = "lazytpu.expm1"


@irdl_op_definition
class LogOp(AnalyticUnaryOp):
    """Natural logarithm."""

    name = "lazytpu.log"


@irdl_op_definition
class Log1pOp(AnalyticUnaryOp):
    """log(1 + x), exact near 0."""

    name = "lazytpu.log1p"


@irdl_op_definition
class SqrtOp(AnalyticUnaryOp):
    """Square root."""

    name = "lazytpu.sqrt"


@irdl_op_definition
class RsqrtOp(AnalyticUnaryOp):
    """1 / sqrt(x)."""

    name = "lazytpu.rsqrt"


@irdl_op_definition
class CbrtOp(AnalyticUnaryOp):
    """Cube root."""

    name = "lazytpu.cbrt"


@irdl_op_definition
class SinOp(AnalyticUnaryOp):
    """Sine of x radians."""

    name = "lazytpu.sin"


@irdl_op_definition
class CosOp(AnalyticUnaryOp):
    """Cosine of x radians."""

    name = "lazytpu.cos"


@irdl_op_definition
class TanOp(AnalyticUnaryOp):
    """Tangent of x radians."""

    name = "lazytpu.tan"


@irdl_op_definition
class TanhOp(AnalyticUnaryOp):
    """Hyperbolic tangent."""

    name = "lazytpu.tanh"


@irdl_op_definition
class LogisticOp(AnalyticUnaryOp):
    """1 / (1 + e^-x)."""

    name = "lazytpu.logistic"


@irdl_op_definition
class ErfOp(FloatUnaryOp):
    """Gauss error function."""

    name = "lazytpu.erf"


@irdl_op_definition
class ErfcOp(FloatUnaryOp):
    """1 - erf(x), exact for large x."""

    name = "lazytpu.erfc"


@irdl_op_definition
class ErfInvOp(FloatUnaryOp):
    """Inverse of erf."""

    name = "lazytpu.erf_inv"


@irdl_op_definition
class LgammaOp(FloatUnaryOp):
    """log |gamma(x)|."""

    name = "lazytpu.lgamma"


@irdl_op_definition
class DigammaOp(FloatUnaryOp):
    """Derivative of lgamma."""

    name = "lazytpu.digamma"


@irdl_op_definition
class BesselI1eOp(FloatUnaryOp):
    """Exponentially scaled modified Bessel function of the first kind, order 1."""

    name = "lazytpu.bessel_i1e"


@irdl_op_definition
class AcosOp(AnalyticUnaryOp):
    """Inverse cosine."""

    name = "lazytpu.acos"


@irdl_op_definition
class AsinOp(AnalyticUnaryOp):
    """Inverse sine."""

    name = "lazytpu.asin"


@irdl_op_definition
class AtanOp(AnalyticUnaryOp):
    """Inverse tangent."""

    name = "lazytpu.atan"


@irdl_op_definition
class SinhOp(AnalyticUnaryOp):
    """Hyperbolic sine."""

    name = "lazytpu.sinh"


@irdl_op_definition
class CoshOp(AnalyticUnaryOp):
    """Hyperbolic cosine."""

    name = "lazytpu.cosh"


@irdl_op_definition
class AsinhOp(AnalyticUnaryOp):
    """Inverse hyperbolic sine."""

    name = "lazytpu.asinh"


@irdl_op_definition
class AcoshOp(AnalyticUnaryOp):
    """Inverse hyperbolic cosine."""

    name = "lazytpu.acosh"


@irdl_op_definition
class AtanhOp(AnalyticUnaryOp):
    """Inverse hyperbolic tangent."""

    name = "lazytpu.atanh"


@irdl_op_definition
class NotOp(BitUnaryOp):
    """Logical not of i1, complement of integers."""

    name = "lazytpu.not"


@irdl_op_definition
class PopcountOp(IntegerUnaryOp):
    """Number of set bits, in the dtype of x."""

    name = "lazytpu.popcount"


@irdl_op_definition
class RealOp(RealPartUnaryOp):
    """Real part."""

    name = "lazytpu.real"


@irdl_op_definition
class ImagOp(RealPartUnaryOp):
    """Imaginary part; 0 for a real number."""

    name = "lazytpu.imag"


@irdl_op_definition
class IsFiniteOp(FloatUnaryOp):
    """True (`i1`) where x is neither infinite nor NaN."""

    name = "lazytpu.is_finite"

    @classmethod
    def result_of(cls, x: AnyTensorType) -> AnyTensorType:
        check_dtype(dtype_of(x), cls.DOMAIN)
        return tensor_type("i1", shape_of(x))
