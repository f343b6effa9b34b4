"""Bits: and, or, xor, not, shifts, frexp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from lazytpu.aten.pointwise.operands import finish, full, operands, pointwise, with_number
from lazytpu.aten.registry import rule
from lazytpu.ir.types import bitwidth, dtype_of, is_unsigned, shape_of

if TYPE_CHECKING:
    from lazytpu.ir.builder import Builder

# dtype -> integer dtype of its bits, exponent bits, fraction bits, bias
FLOAT_LAYOUT = {"f32": ("i32", 8, 23, 127), "f64": ("i64", 11, 52, 1023)}


def _bitwise(name: str, op: str) -> None:
    packet = f"aten.bitwise_{name}"

    @pointwise(f"{packet}.Tensor", f"{packet}.Scalar", f"{packet}.Scalar_Tensor")
    def bitwise(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
        return b.binary(op, self, other)


_bitwise("and", "and")
_bitwise("or", "or")
_bitwise("xor", "xor")


@pointwise("aten.bitwise_not.default")
def bitwise_not(b: Builder, self: SSAValue) -> SSAValue:
    """~self; for bools, logical not."""
    return b.not_(self)


@pointwise(
    "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_left_shift.Tensor_Scalar",
    "aten.bitwise_left_shift.Scalar_Tensor",
    "aten.__lshift__.Tensor",
    "aten.__lshift__.Scalar",
)
def left_shift(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """self << other: 0 if the count is negative or not below the width."""
    return b.select(_in_range(b, other), b.binary("shift_left", self, other), full(b, 0, self))


@pointwise(
    "aten.bitwise_right_shift.Tensor",
    "aten.bitwise_right_shift.Tensor_Scalar",
    "aten.bitwise_right_shift.Scalar_Tensor",
    "aten.__rshift__.Tensor",
    "aten.__rshift__.Scalar",
)
def right_shift(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """self >> other: 0, or -1 for a negative number, if the count is negative or not below the width."""
    if is_unsigned(dtype_of(self)):
        shifted = b.binary("shift_right_logical", self, other)
        return b.select(_in_range(b, other), shifted, full(b, 0, self))
    signs = full(b, bitwidth(dtype_of(self)) - 1, self)
    return b.binary("shift_right_arithmetic", self, b.select(_in_range(b, other), other, signs))


def _in_range(b: Builder, count: SSAValue) -> SSAValue:
    below = b.compare("LT", count, full(b, bitwidth(dtype_of(count)), count))
    return below if is_unsigned(dtype_of(count)) else b.and_(b.compare("GE", count, full(b, 0, count)), below)


@rule("aten.frexp.Tensor")
def frexp(b: Builder, self: SSAValue) -> tuple[SSAValue, SSAValue]:
    """(m, e) with self = m 2^e and 1/2 <= |m| < 1; for 0, infinities and NaN, m is the number itself and e = 0.

    The exponent is read from the bits. Numbers below the normal range are first scaled into it.
    """
    (x,) = operands(b, self, common=dtype_of(self))
    bits_dtype, exponent_bits, fraction_bits, bias = FLOAT_LAYOUT[dtype_of(x)]
    tiny = b.compare("LT", b.abs(x), full(b, 2.0 ** (1 - bias), x))
    scaled = b.select(tiny, with_number(b, "mul", x, 2.0 ** (fraction_bits + 1)), x)
    bits = b.bitcast_convert(scaled, bits_dtype, shape_of(x))
    field = (1 << exponent_bits) - 1
    exponent = with_number(b, "and", b.binary("shift_right_logical", bits, full(b, fraction_bits, bits)), field)
    shift = b.select(tiny, full(b, bias - 1 + fraction_bits + 1, bits), full(b, bias - 1, bits))
    exponent = b.sub(exponent, shift)
    cleared = with_number(b, "and", bits, ~(field << fraction_bits))
    mantissa = b.bitcast_convert(with_number(b, "or", cleared, (bias - 1) << fraction_bits), dtype_of(x), shape_of(x))
    plain = b.and_(b.unary("is_finite", x), b.compare("NE", x, full(b, 0, x)))
    mantissa, exponent = b.select(plain, mantissa, x), b.select(plain, exponent, full(b, 0, exponent))
    return finish(b, mantissa), b.convert(exponent, b.out[1][0])
