"""Functions of complex numbers for which XLA differs from C99: at infinities, at 0, on a branch cut."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import full, with_number
from lazytpu.ir.types import dtype_of, is_complex

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def _parts(b: Builder, x: SSAValue) -> tuple[SSAValue, SSAValue]:
    return b.unary("real", x), b.unary("imag", x)


def size(b: Builder, x: SSAValue) -> SSAValue:
    """|x|: infinite when either part is, even beside a NaN."""
    result = b.abs(x)
    if not is_complex(dtype_of(x)):
        return result
    infinity = full(b, math.inf, result)
    infinite = [b.compare("EQ", b.abs(part), infinity) for part in _parts(b, x)]
    return b.select(b.or_(*infinite), infinity, result)


def square_root(b: Builder, x: SSAValue) -> SSAValue:
    """The root with positive real part. Its imaginary part has the sign of x's imaginary part, even if that is -0.0."""
    root = b.sqrt(x)
    if not is_complex(dtype_of(x)):
        return root
    real, imag = _parts(b, root)
    imag_of_x = b.unary("imag", x)
    zero = full(b, 0, imag_of_x)
    # The quotient is -inf for -0.0, and -0.0 for -inf.
    quotient = b.div(full(b, 1, imag_of_x), imag_of_x)
    below = b.or_(b.compare("LT", imag_of_x, zero), b.compare("LT", quotient, zero))
    height = b.abs(imag)
    return b.binary("complex", real, b.select(below, b.neg(height), height))


def exponential(b: Builder, x: SSAValue) -> SSAValue:
    """e^x. Where the imaginary part is not finite, 0 for a real part of -inf, and (inf, NaN) for +inf."""
    result = b.exp(x)
    if not is_complex(dtype_of(x)):
        return result
    real, imag = _parts(b, x)
    zero, infinity = full(b, 0, real), full(b, math.inf, real)
    vanishing = b.compare("EQ", real, full(b, -math.inf, real))
    endless = b.compare("EQ", real, infinity)
    lost = b.not_(b.unary("is_finite", imag))
    limit = b.binary("complex", b.select(vanishing, zero, infinity), b.select(vanishing, zero, full(b, math.nan, real)))
    return b.select(b.and_(lost, b.or_(vanishing, endless)), limit, result)


def power_of_two(b: Builder, x: SSAValue) -> SSAValue:
    """2^x."""
    if not is_complex(dtype_of(x)):
        return b.binary("pow", full(b, 2, x), x)
    return exponential(b, with_number(b, "mul", x, math.log(2)))


def power(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """x^y. For a complex 0: 0 if the exponent's real part is positive, infinite if it is negative, else NaN."""
    result = b.binary("pow", x, y)
    if not is_complex(dtype_of(x)):
        return result
    real = b.unary("real", y)
    zero, nan = full(b, 0, real), full(b, math.nan, real)
    above, below = b.compare("GT", real, zero), b.compare("LT", real, zero)
    first = b.select(above, zero, b.select(below, full(b, math.inf, real), nan))
    limit = b.binary("complex", first, b.select(above, zero, nan))
    return b.select(b.compare("EQ", x, full(b, 0, x)), limit, result)
