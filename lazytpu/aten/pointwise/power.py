"""Powers: static exponents as products and roots, others by the dialect's pow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from lazytpu.aten.pointwise.complex_limits import power as power_or_limit
from lazytpu.aten.pointwise.complex_limits import reciprocal_root, square_root
from lazytpu.aten.pointwise.operands import Operand, finish, full, operands, pointwise, result_type
from lazytpu.aten.pointwise.unary import reciprocal
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.ir.types import dtype_of, is_complex, is_float, is_integer

if TYPE_CHECKING:
    from lazytpu.ir.builder import Builder

# XLA takes the top bit of an integer exponent as its sign, even if it is unsigned. In a wider dtype that bit is 0.
WIDER = {"ui8": "ui32", "ui16": "ui32", "ui32": "ui64"}


# Exponents whose power has a special formula.
SPECIAL = (2, 3, 0.5, -0.5, -1, -2, 1, 0)


@rule("aten.pow.Tensor_Scalar", specialized=("exponent",))
def pow_by_number(b: Builder, self: SSAValue, exponent: Operand) -> SSAValue:
    """self^exponent. A static exponent is part of the program and selects the formula. For a varying one, the program
    has all formulas and selects by the number: the results are the same."""
    common = result_type(self, exponent)
    if not isinstance(exponent, Scalar) or exponent.plan is None:
        return _fixed(b, self, exponent, common)
    if is_integer(common):
        return finish(b, power(b, *operands(b, self, exponent, common=common)))
    result = finish(b, power_or_limit(b, *operands(b, self, exponent, common=common)), common)
    for special in SPECIAL:
        chosen = _equals(b, exponent, special, "f64" if common in ("f64", "c128") else "f32")
        result = b.select(chosen, _fixed(b, self, Scalar(exponent.kind, special), common), result)
    return result


def _equals(b: Builder, exponent: Scalar, value: float, dtype: str) -> SSAValue:
    """Whether a run-time number, in a real `dtype`, is `value`."""
    if exponent.kind != "complex":
        return b.compare("EQ", b.scalar(exponent, dtype), b.constant(value, dtype))
    number = b.scalar(exponent, "c64" if dtype == "f32" else "c128")
    real, imag = (
        b.compare("EQ", b.unary(part, number), b.constant(v, dtype)) for part, v in (("real", value), ("imag", 0))
    )
    return b.and_(real, imag)


def _fixed(b: Builder, self: SSAValue, exponent: Operand, common: str) -> SSAValue:
    number = exponent.value if isinstance(exponent, Scalar) else None
    if number == 0:
        return b.constant(1, *b.out[0])
    if number == 1:
        return finish(b, self)
    if is_integer(common) and isinstance(number, int) and number > 0:
        return finish(b, integer_power(b, operands(b, self, common=common)[0], number))
    # The CPU's bfloat16 cube rounds after each product; Half is widened first (PowKernel.cpp, Vectorized<BFloat16>).
    halves = "own" if common == "bf16" and number in (3, -2) else "wide"
    # f16's roots are powers in f32, which differ at -inf and -0.
    rooted = common == "f16" and number in (0.5, -0.5)
    if number is not None and not rooted and (is_float(common) or is_complex(common)):
        (x,) = operands(b, self, common=common, halves=halves)
        special = static_power(b, x, number)
        if special is not None:
            return finish(b, special, common)
    return finish(b, power_or_limit(b, *operands(b, self, exponent, common=common)), common)


def static_power(b: Builder, x: SSAValue, exponent: complex) -> SSAValue | None:
    """The power for exponents that `pow_tensor_scalar_optimized_kernel` (PowKernel.cpp) does not pass to std::pow, else
    None."""
    if exponent == 2:
        return b.mul(x, x)
    if exponent == 3:
        return b.mul(b.mul(x, x), x)
    if exponent == 0.5:
        return square_root(b, x)
    if exponent == -0.5:
        return reciprocal_root(b, x)
    if exponent == -1:
        return reciprocal(b, x)
    if exponent == -2:
        return reciprocal(b, b.mul(x, x))
    return None


def integer_power(b: Builder, x: SSAValue, exponent: int) -> SSAValue:
    """x^exponent by squaring, wrapping around as integer products do."""
    result: SSAValue | None = None
    while True:
        if exponent & 1:
            result = x if result is None else b.mul(result, x)
        exponent >>= 1
        if not exponent:
            return full(b, 1, x) if result is None else result
        x = b.mul(x, x)


@pointwise("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(b: Builder, self: SSAValue, exponent: SSAValue) -> SSAValue:
    """self^exponent; for integers, 0 if the exponent is negative and the base neither 1 nor -1."""
    wider = WIDER.get(dtype_of(self))
    if wider is None:
        return power_or_limit(b, self, exponent)
    return b.binary("pow", b.convert(self, wider), b.convert(exponent, wider))
