"""Ops of one tensor: rounding, exponentials, logarithms, trigonometry, error functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from lazytpu.aten.pointwise.complex_limits import exponential, power_of_two, size, square_root
from lazytpu.aten.pointwise.operands import computable, finish, full, table, wide, with_number
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, is_complex, is_float, is_unsigned, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder


def signbit(b: Builder, x: SSAValue) -> SSAValue:
    """Whether the sign bit is set, as it is for -0.0 and negative NaNs.

    Read from x as f32: narrowing keeps the sign, and a TPU cannot access the bits of an f64.
    """
    if not is_float(dtype_of(x)):
        return full(b, False, b.convert(x, "i1")) if is_unsigned(dtype_of(x)) else b.compare("LT", x, full(b, 0, x))
    bits = b.bitcast_convert(b.convert(x, "f32"), "i32", shape_of(x))
    return b.compare("LT", bits, full(b, 0, bits))


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
    zero = full(b, 0, length)
    scaled = b.div(x, b.binary("complex", length, zero))
    return b.select(b.compare("EQ", length, zero), full(b, 0, x), scaled)


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
        whole = b.unary("round_nearest_even", result)
        return b.select(b.compare("EQ", b.binary("pow", full(b, base, x), whole), x), whole, result)

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
    whole = b.and_(b.compare("LT", x, zero), b.compare("EQ", x, b.unary("floor", x)))
    result = b.select(whole, full(b, math.nan, x), result)
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
        "aten.exp.default": exponential,
        "aten.expm1.default": "expm1",
        "aten.exp2.default": power_of_two,
        "aten.log.default": "log",
        "aten.log1p.default": "log1p",
        "aten.log2.default": log_to(2),
        "aten.log10.default": log_to(10),
        "aten.sqrt.default": square_root,
        "aten.rsqrt.default": "rsqrt",
        "aten.reciprocal.default": reciprocal,
        "aten.sin.default": "sin",
        "aten.cos.default": "cos",
        "aten.tan.default": "tan",
        "aten.asin.default": "asin",
        "aten.acos.default": "acos",
        "aten.atan.default": "atan",
        "aten.sinh.default": "sinh",
        "aten.cosh.default": "cosh",
        "aten.tanh.default": "tanh",
        "aten.asinh.default": "asinh",
        "aten.acosh.default": "acosh",
        "aten.atanh.default": "atanh",
        "aten.sigmoid.default": "logistic",
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
