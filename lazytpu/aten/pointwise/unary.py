"""Ops of one tensor: rounding, exponentials, logarithms, trigonometry, error functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from lazytpu.aten.pointwise import complex_limits as limits
from lazytpu.aten.pointwise.complex_limits import size
from lazytpu.aten.pointwise.operands import computable, finish, full, table, wide, with_number
from lazytpu.aten.pointwise.signs import signbit
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, is_complex, is_float, is_unsigned

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder


def sign(b: Builder, x: SSAValue) -> SSAValue:
    """(0 < x) - (x < 0), which is 0 for NaN."""
    if dtype_of(x) == "i1":
        return x
    zero = full(b, 0, x)
    positive = b.convert(b.compare("GT", x, zero), dtype_of(x))
    if is_unsigned(dtype_of(x)):
        return positive
    return b.sub(positive, b.convert(b.compare("LT", x, zero), dtype_of(x)))


def sgn(b: Builder, x: SSAValue) -> SSAValue:
    """x / |x|; 0 at 0."""
    if not is_complex(dtype_of(x)):
        return sign(b, x)
    length = b.abs(x)
    real, imag = (b.div(b.unary(part, x), length) for part in ("real", "imag"))
    return b.select(b.compare("EQ", length, full(b, 0, length)), full(b, 0, x), b.binary("complex", real, imag))


def trunc(b: Builder, x: SSAValue) -> SSAValue:
    """x rounded toward zero; an integer unchanged."""
    if not is_float(dtype_of(x)):
        return x
    return b.select(b.compare("LT", x, full(b, 0, x)), b.unary("ceil", x), b.unary("floor", x))


def frac(b: Builder, x: SSAValue) -> SSAValue:
    """x - trunc(x)."""
    return b.sub(x, trunc(b, x))


def reciprocal(b: Builder, x: SSAValue) -> SSAValue:
    """1 / x."""
    return b.div(full(b, 1, x), x)


def log_to(base: int) -> Any:
    """log(x) / log(base), but exactly n at base^n. The quotient alone is off by one bit at a fifth of the powers of 2,
    which floor(log2(x)) would expose."""

    def scaled(b: Builder, x: SSAValue) -> SSAValue:
        result = b.log(x)
        if is_complex(dtype_of(x)):
            parts = (with_number(b, "div", b.unary(part, result), math.log(base)) for part in ("real", "imag"))
            return b.binary("complex", *parts)
        result = with_number(b, "div", result, math.log(base))
        rounded = b.unary("round_nearest_even", result)
        return b.select(b.compare("EQ", b.binary("pow", full(b, base, x), rounded), x), rounded, result)

    return scaled


def sinc(b: Builder, x: SSAValue) -> SSAValue:
    """sin(pi x) / (pi x); 1 at 0."""
    scaled = with_number(b, "mul", x, math.pi)
    return b.select(b.compare("EQ", x, full(b, 0, x)), full(b, 1, x), b.div(b.unary("sin", scaled), scaled))


def erfinv(b: Builder, x: SSAValue) -> SSAValue:
    """The inverse of erf: infinite at -1 and 1, NaN beyond."""
    return b.unary("erf_inv", x)


def digamma(b: Builder, x: SSAValue) -> SSAValue:
    """The derivative of lgamma: -inf at 0, inf at -0, NaN at the other poles (`calc_digamma` in ATen/native/Math.h)."""
    zero = full(b, 0, x)
    pole = b.select(signbit(b, x), full(b, math.inf, x), full(b, -math.inf, x))
    result = b.unary("digamma", x)
    negative_integer = b.and_(b.compare("LT", x, zero), b.compare("EQ", x, b.unary("floor", x)))
    result = b.select(negative_integer, full(b, math.nan, x), result)
    return b.select(b.compare("EQ", x, zero), pole, result)


def _whole(name: str) -> Any:
    return lambda b, x: b.unary(name, x) if is_float(dtype_of(x)) else x


def _neg(b: Builder, x: SSAValue) -> SSAValue:
    return b.neg(x)


# The result has the input's dtype.
table(
    {
        "aten.neg.default": _neg,
        "aten.sign.default": sign,
        "aten.sgn.default": sgn,
        "aten.ceil.default": _whole("ceil"),
        "aten.floor.default": _whole("floor"),
        "aten.trunc.default": trunc,
        "aten.round.default": _whole("round_nearest_even"),
        "aten.frac.default": frac,
        "aten.positive.default": lambda b, x: x,
    },
    halves="own",
)

# Integers are promoted to the default float.
table(
    {
        "aten.exp.default": limits.exponential,
        "aten.expm1.default": limits.exponential_minus_one,
        "aten.exp2.default": limits.power_of_two,
        "aten.log.default": "log",
        "aten.log1p.default": limits.log_plus_one,
        "aten.log2.default": log_to(2),
        "aten.log10.default": log_to(10),
        "aten.sqrt.default": limits.square_root,
        "aten.rsqrt.default": limits.reciprocal_root,
        "aten.reciprocal.default": reciprocal,
        "aten.sin.default": limits.sine,
        "aten.cos.default": limits.cosine,
        "aten.tan.default": limits.tangent,
        "aten.asin.default": limits.odd("asin"),
        "aten.acos.default": limits.arc_cosine,
        "aten.atan.default": limits.odd("atan"),
        "aten.sinh.default": "sinh",
        "aten.cosh.default": "cosh",
        "aten.tanh.default": limits.hyperbolic_tangent,
        "aten.asinh.default": limits.odd("asinh"),
        "aten.acosh.default": limits.area_cosine,
        "aten.atanh.default": limits.odd("atanh"),
        "aten.sigmoid.default": limits.logistic,
        "aten.sinc.default": sinc,
        "aten.erf.default": "erf",
        "aten.erfc.default": "erfc",
        "aten.erfinv.default": erfinv,
        "aten.lgamma.default": "lgamma",
        "aten.digamma.default": digamma,
        "aten.deg2rad.default": lambda b, x: with_number(b, "mul", x, math.pi / 180),
        "aten.rad2deg.default": lambda b, x: with_number(b, "mul", x, 180 / math.pi),
    },
    floating=True,
)


@rule("aten.abs.default")
def absolute(b: Builder, self: SSAValue) -> SSAValue:
    """|x|, real for complex x; bools and unsigned integers unchanged."""
    dtype = dtype_of(self)
    return self if dtype == "i1" or is_unsigned(dtype) else finish(b, size(b, computable(b, self)))


@rule("aten.round.decimals")
def round_decimals(b: Builder, self: SSAValue, decimals: int) -> SSAValue:
    """round(x * 10^decimals) / 10^decimals."""
    if not is_float(dtype_of(self)):
        return self
    x = b.convert(self, wide(dtype_of(self)))
    # XLA turns a division by a constant into a product with its rounded reciprocal, and 3 / 10 would not be 0.3. A
    # divisor that depends on x prevents that.
    scale = b.select(b.compare("EQ", x, x), full(b, 10.0 ** abs(decimals), x), full(b, 1, x))
    forward, back = ("mul", "div") if decimals >= 0 else ("div", "mul")
    return finish(b, b.binary(back, b.unary("round_nearest_even", b.binary(forward, x, scale)), scale))


@rule("aten.nan_to_num.default", numbers=("nan", "posinf", "neginf"))
def nan_to_num(
    b: Builder, self: SSAValue, nan: Scalar | None, posinf: Scalar | None, neginf: Scalar | None
) -> SSAValue:
    """NaN and infinities replaced, by default with 0 and the dtype's greatest and least finite numbers."""
    dtype = dtype_of(self)
    if is_complex(dtype):
        parts = (nan_to_num(b, b.unary(part, self), nan, posinf, neginf) for part in ("real", "imag"))
        return b.binary("complex", *parts)
    if not is_float(dtype):
        return self
    limit = torch.finfo({"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}.get(dtype, torch.float64))
    replaced = b.select(b.compare("NE", self, self), full(b, 0.0 if nan is None else nan, self), self)
    for bound, replacement, finite in ((math.inf, posinf, limit.max), (-math.inf, neginf, limit.min)):
        at = b.compare("EQ", self, full(b, bound, self))
        replaced = b.select(at, full(b, finite if replacement is None else replacement, self), replaced)
    return replaced


@rule("aten.signbit.default")
def is_negative(b: Builder, self: SSAValue) -> SSAValue:
    """The sign bit; False for bools."""
    return full(b, False, self) if dtype_of(self) == "i1" else signbit(b, self)
