"""Sums, products, quotients, and ops built from them: remainders, fused multiply-adds, interpolation, log-sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from lazytpu.aten.pointwise.operands import (
    HALVES,
    Operand,
    finish,
    float_type,
    full,
    number,
    operands,
    pointwise,
    result_type,
)
from lazytpu.aten.pointwise.signs import signbit
from lazytpu.aten.pointwise.unary import trunc
from lazytpu.aten.promotion import broadcast_shape
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.ir.types import dtype_of, is_complex, is_float, is_unsigned, shape_of

if TYPE_CHECKING:
    from lazytpu.ir.builder import Builder


def _is(number: Operand, value: float) -> bool:
    """Whether `number` is known to be `value` at import."""
    return isinstance(number, Scalar) and number.value is not None and number.value == value


def _plus(b: Builder, op: str, x: Operand, y: Operand, alpha: Operand) -> SSAValue:
    """x + alpha y, or x - alpha y. For f16 and bf16, numbers are first rounded to the tensors' dtype, and the result is
    rounded once (`ufunc::add` over `Vectorized<BFloat16>`)."""
    common = result_type(x, y)
    if _is(alpha, 1):
        return finish(b, b.binary(op, *operands(b, x, y, common=common, halves="own")))
    left, right, factor = operands(b, x, y, alpha, common=common)
    return finish(b, b.binary(op, left, b.mul(right, factor)), common)


@rule("aten.add.Tensor", "aten.add.Scalar", numbers=("self", "other", "alpha"))
def add(b: Builder, self: Operand, other: Operand, alpha: Operand) -> SSAValue:
    """self + alpha * other; for bools, logical or."""
    return _plus(b, "add", self, other, alpha)


@rule("aten.sub.Tensor", "aten.sub.Scalar", numbers=("self", "other", "alpha"))
def sub(b: Builder, self: Operand, other: Operand, alpha: Operand) -> SSAValue:
    """self - alpha * other."""
    return _plus(b, "sub", self, other, alpha)


@rule("aten.rsub.Tensor", "aten.rsub.Scalar", numbers=("self", "other", "alpha"))
def rsub(b: Builder, self: Operand, other: Operand, alpha: Operand) -> SSAValue:
    """other - alpha * self."""
    return _plus(b, "sub", other, self, alpha)


def _unrounded(other: Operand) -> bool:
    """Whether CPU kernels read `other`, the second operand of mul or div, in f32 although the first is f16 or bf16: if
    it is a number or 0-d tensor (`iter.original_scalar_value<opmath_t>(2)` in BinaryOpsKernel.cpp)."""
    return isinstance(other, Scalar) or not shape_of(other)


def _scaled(b: Builder, op: str, x: Operand, y: Operand, common: str) -> SSAValue:
    """x `op` y for mul and div, rounded once."""
    if common not in HALVES or not _unrounded(y):
        return b.binary(op, *operands(b, x, y, common=common, halves="own"))
    (left,) = operands(b, x, common=common)
    return b.binary(op, *operands(b, left, y, common=common, rounded=False))


@rule("aten.mul.Tensor", "aten.mul.Scalar", numbers=("self", "other"))
def mul(b: Builder, self: Operand, other: Operand) -> SSAValue:
    """self * other; for bools, logical and."""
    common = result_type(self, other)
    return finish(b, _scaled(b, "mul", self, other, common), common)


@rule("aten.div.Tensor", "aten.div.Scalar", numbers=("self", "other"))
def div(b: Builder, self: Operand, other: Operand) -> SSAValue:
    """self / other; integers are divided in the default float."""
    common = float_type(self, other)
    return finish(b, _scaled(b, "div", self, other, common), common)


@rule("aten.div.Tensor_mode", "aten.div.Scalar_mode", numbers=("self", "other"))
def div_mode(b: Builder, self: Operand, other: Operand, rounding_mode: str | None) -> SSAValue:
    """self / other, rounded toward zero ("trunc") or down ("floor")."""
    if rounding_mode is None:
        return div(b, self, other)
    common = result_type(self, other)
    (left,) = operands(b, self, common=common)
    halves = "wide" if _unrounded(other) else "own"
    x, y = operands(b, left, other, common=common, halves=halves, rounded=halves == "own")
    if not is_float(common):
        y = _divisor(b, other, y)
    if rounding_mode == "floor":
        return finish(b, floor_quotient(b, x, y), common)
    return finish(b, trunc(b, b.div(x, y)), common)


@rule("aten.floor_divide.default", "aten.floor_divide.Scalar", numbers=("self", "other"))
def floor_divide(b: Builder, self: Operand, other: Operand) -> SSAValue:
    """self / other, rounded down."""
    return div_mode(b, self, other, "floor")


def _divisor(b: Builder, divisor: Operand, value: SSAValue) -> SSAValue:
    """`value` as an integer divisor. Division by zero is an error on the CPU, and here a check. Zeros are replaced by
    one, since XLA's code traps on a divisor that it knows to be zero."""
    if isinstance(divisor, Scalar) and divisor.value:
        return value
    ok = b.compare("NE", value, full(b, 0, value))
    b.check(ok, "ZeroDivisionError", "RuntimeError")
    return b.select(ok, value, full(b, 1, value))


def floor_quotient(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """floor(x / y) as in `c10::div_floor_floating` and `div_floor_integer`: from the exact remainder, since the rounded
    quotient may lie on the wrong side of an integer."""
    zero, one = full(b, 0, x), full(b, 1, x)
    remainder = b.binary("rem", x, y)
    inexact = b.compare("NE", remainder, zero)
    if not is_float(dtype_of(x)):
        quotient = b.div(x, y)
        if is_unsigned(dtype_of(x)):
            return quotient
        down = b.and_(inexact, _signs_differ(b, remainder, y))
        return b.sub(quotient, b.convert(down, dtype_of(x)))
    quotient = b.div(b.sub(x, remainder), y)
    down = b.and_(inexact, _signs_differ(b, remainder, y))
    quotient = b.select(down, b.sub(quotient, one), quotient)
    floored = b.unary("floor", quotient)
    off = b.compare("GT", b.sub(quotient, floored), full(b, 0.5, x))
    floored = b.select(off, b.add(floored, one), floored)
    plain = b.div(x, y)
    zeros = b.select(signbit(b, plain), full(b, -0.0, x), zero)
    floored = b.select(b.compare("EQ", quotient, zero), zeros, floored)
    return b.select(b.compare("EQ", y, zero), plain, floored)


def _signs_differ(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    return b.binary("xor", b.compare("LT", x, full(b, 0, x)), b.compare("LT", y, full(b, 0, y)))


@rule("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor", numbers=("self", "other"))
def remainder(b: Builder, self: Operand, other: Operand) -> SSAValue:
    """self - other * floor(self / other), with the sign of `other`."""
    common = result_type(self, other)
    x, y = operands(b, self, other, common=common)
    if not is_float(common):
        y = _divisor(b, other, y)
    result = b.binary("rem", x, y)
    if is_unsigned(common):
        return finish(b, result)
    off = b.and_(b.compare("NE", result, full(b, 0, x)), _signs_differ(b, result, y))
    return finish(b, b.select(off, b.add(result, y), result), common)


@rule("aten.fmod.Tensor", "aten.fmod.Scalar", numbers=("self", "other"))
def fmod(b: Builder, self: Operand, other: Operand) -> SSAValue:
    """self - other * trunc(self / other), with the sign of `self`."""
    common = result_type(self, other)
    x, y = operands(b, self, other, common=common)
    if not is_float(common):
        y = _divisor(b, other, y)
    return finish(b, b.binary("rem", x, y), common)


@rule("aten.addcmul.default", numbers=("self", "tensor1", "tensor2", "value"))
def addcmul(b: Builder, self: Operand, tensor1: Operand, tensor2: Operand, value: Operand) -> SSAValue:
    """self + value * tensor1 * tensor2, rounded once."""
    common = result_type(self, tensor1, tensor2)
    x, y, z = operands(b, self, tensor1, tensor2, common=common, rounded=False)
    return finish(b, b.add(x, b.mul(_times(b, value, y), z)), common)


@rule("aten.addcdiv.default", numbers=("self", "tensor1", "tensor2", "value"))
def addcdiv(b: Builder, self: Operand, tensor1: Operand, tensor2: Operand, value: Operand) -> SSAValue:
    """self + value * tensor1 / tensor2, rounded once."""
    common = result_type(self, tensor1, tensor2)
    x, y, z = operands(b, self, tensor1, tensor2, common=common, rounded=False)
    return finish(b, b.add(x, b.div(_times(b, value, y), z)), common)


def _times(b: Builder, value: Operand, x: SSAValue) -> SSAValue:
    """value * x, with the number `value` converted to x's dtype."""
    if _is(value, 1):
        return x
    factor = number(b, value, dtype_of(x)) if isinstance(value, Scalar) else b.convert(value, dtype_of(x))
    return b.mul(b.broadcast_to(factor, shape_of(x)), x)


@rule("aten.lerp.Tensor", "aten.lerp.Scalar", numbers=("self", "end", "weight"))
def lerp(b: Builder, self: Operand, end: Operand, weight: Operand) -> SSAValue:
    """self + weight (end - self), computed from the nearer end: end + (weight - 1) (end - self) for |weight| >= 1/2
    (ATen/native/Lerp.h). If the weight is one number, the end is selected once."""
    common = result_type(*(a for a in (self, end, weight) if isinstance(a, SSAValue)))
    start, stop = operands(b, self, end, common=common, rounded=False)
    (fraction,) = operands(b, weight, common=common, rounded=False)
    shape = broadcast_shape(shape_of(start), shape_of(fraction))
    if shape_of(fraction):
        start, stop, fraction = (b.broadcast_to(x, shape) for x in (start, stop, fraction))
    size = b.abs(fraction)
    near = b.compare("LT", size, full(b, 0.5, size))
    coefficient = b.select(near, fraction, b.sub(fraction, full(b, 1, fraction)))
    base = b.select(near, start, stop)
    return finish(b, b.add(base, b.mul(b.broadcast_to(coefficient, shape), b.sub(stop, start))), common)


@pointwise("aten.logaddexp.default", floating=True)
def logaddexp(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """log(e^x + e^y) = max + log1p(e^(min - max)); equal infinities are returned as they are
    (ATen/native/cpu/LogAddExp.h)."""
    if is_complex(dtype_of(self)):
        first = b.compare("GE", b.unary("real", self), b.unary("real", other))
        larger, smaller = b.select(first, self, other), b.select(first, other, self)
        return b.add(larger, b.unary("log1p", b.exp(b.sub(smaller, larger))))
    distance = b.abs(b.sub(self, other))
    result = b.add(b.max(self, other), b.unary("log1p", b.exp(b.neg(distance))))
    return _equal_infinities(b, self, other, result)


@pointwise("aten.logaddexp2.default", floating=True)
def logaddexp2(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """log2(2^x + 2^y)."""
    distance = b.abs(b.sub(self, other))
    power = b.binary("pow", full(b, 2, distance), b.neg(distance))
    raised = b.div(b.unary("log1p", power), full(b, math.log(2), power))
    return _equal_infinities(b, self, other, b.add(b.max(self, other), raised))


def _equal_infinities(b: Builder, x: SSAValue, y: SSAValue, otherwise: SSAValue) -> SSAValue:
    infinite = b.compare("EQ", b.abs(x), full(b, math.inf, x))
    return b.select(b.and_(infinite, b.compare("EQ", x, y)), x, otherwise)


@pointwise("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other", floating=True)
def xlogy(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """self * log(other): 0 where self is 0, unless `other` is NaN."""
    return _zero_times(b, self, other, b.log(other))


@pointwise(
    "aten.special_xlog1py.default",
    "aten.special_xlog1py.self_scalar",
    "aten.special_xlog1py.other_scalar",
    floating=True,
)
def xlog1py(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """self * log1p(other): 0 where self is 0, unless `other` is NaN."""
    return _zero_times(b, self, other, b.unary("log1p", other))


def _zero_times(b: Builder, x: SSAValue, y: SSAValue, logarithm: SSAValue) -> SSAValue:
    zero = full(b, 0, x)
    absent = b.and_(b.compare("EQ", x, zero), b.compare("EQ", y, y))
    return b.select(absent, zero, b.mul(x, logarithm))


@pointwise("aten.atan2.default", floating=True)
def atan2(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """The angle of the point (other, self)."""
    return b.binary("atan2", self, other)


@pointwise("aten.hypot.default")
def hypot(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """sqrt(x^2 + y^2) without intermediate overflow; inf wins over NaN. Computed as the magnitude of a complex number,
    except in f64, since a TPU has no complex128."""
    infinity = full(b, math.inf, self)
    if dtype_of(self) == "f64":
        larger, smaller = (b.binary(which, b.abs(self), b.abs(other)) for which in ("max", "min"))
        ratio = b.div(smaller, b.select(b.compare("EQ", larger, full(b, 0, larger)), full(b, 1, larger), larger))
        length = b.mul(larger, b.sqrt(b.add(full(b, 1, ratio), b.mul(ratio, ratio))))
    else:
        length = b.abs(b.binary("complex", self, other))
    infinite = b.or_(*(b.compare("EQ", b.abs(x), infinity) for x in (self, other)))
    return b.select(infinite, infinity, length)


@rule("aten.ldexp.Tensor", numbers=("self", "other"))
def ldexp(b: Builder, self: Operand, other: Operand) -> SSAValue:
    """self * 2^other, the power in the float dtype of `other` (BinaryOps.cpp: `mul(x, pow(2.0, other))`)."""
    dtype = float_type(other)
    (exponent,) = operands(b, other, common=dtype)
    raised = b.convert(b.binary("pow", full(b, 2, exponent), exponent), dtype)
    return b.convert(mul(b, self, raised), float_type(self, other))


def _in_place(name: str, meaning: Callable[[Builder, Operand, Operand], SSAValue]) -> None:
    """The rule of an in-place overload that has no functional counterpart of the same name."""

    @rule(name, numbers=("other",))
    def written(b: Builder, self: SSAValue, other: Operand) -> SSAValue:
        b.out = [(dtype_of(self), shape_of(self))]
        return meaning(b, self, other)


_in_place("aten.floor_divide_.Tensor", floor_divide)
_in_place("aten.ldexp_.default", ldexp)
