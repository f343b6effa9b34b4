"""Functions of complex numbers for which XLA differs from C99: at infinities, at 0, on a branch cut."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import full, with_number
from lazytpu.aten.pointwise.signs import signbit, signed
from lazytpu.ir.types import dtype_of, is_complex

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def _parts(b: Builder, x: SSAValue) -> tuple[SSAValue, SSAValue]:
    return b.unary("real", x), b.unary("imag", x)


def _is_zero(b: Builder, x: SSAValue) -> SSAValue:
    return b.compare("EQ", x, full(b, 0, x))


def _is_infinite(b: Builder, x: SSAValue) -> SSAValue:
    return b.compare("EQ", b.abs(x), full(b, math.inf, x))


def _is_usual(b: Builder, x: SSAValue) -> SSAValue:
    """Whether both parts of x are finite."""
    real, imag = (b.unary("is_finite", part) for part in _parts(b, x))
    return b.and_(real, imag)


def size(b: Builder, x: SSAValue) -> SSAValue:
    """|x|: infinite when either part is, even beside a NaN."""
    result = b.abs(x)
    if not is_complex(dtype_of(x)):
        return result
    real, imag = _parts(b, x)
    return b.select(b.or_(_is_infinite(b, real), _is_infinite(b, imag)), full(b, math.inf, result), result)


def square_root(b: Builder, x: SSAValue) -> SSAValue:
    """The root with positive real part. Its imaginary part has the sign of x's imaginary part, even if that is -0.0."""
    root = b.sqrt(x)
    if not is_complex(dtype_of(x)):
        return root
    real, imag = _parts(b, root)
    imag_of_x = b.unary("imag", x)
    real = b.select(_is_infinite(b, imag_of_x), full(b, math.inf, real), real)
    imag = b.select(_is_infinite(b, imag_of_x), imag_of_x, imag)
    return b.binary("complex", real, signed(b, imag, signbit(b, imag_of_x)))


def reciprocal_root(b: Builder, x: SSAValue) -> SSAValue:
    """1 / sqrt(x)."""
    return b.div(full(b, 1, x), square_root(b, x)) if is_complex(dtype_of(x)) else b.rsqrt(x)


def exponential(b: Builder, x: SSAValue) -> SSAValue:
    """e^x. Where the imaginary part is not finite, 0 for a real part of -inf, and (inf, NaN) for +inf; where it is 0,
    so is the result's."""
    if not is_complex(dtype_of(x)):
        return b.exp(x)
    imag = b.unary("imag", x)
    return _exponential(b, x, b.compare("LT", imag, full(b, 0, imag)))


def _exponential(b: Builder, x: SSAValue, below: SSAValue) -> SSAValue:
    """e^x for complex x. `below` says where an imaginary part of 0 is negative if x is -inf with a part that is not
    finite."""
    result = b.exp(x)
    real, imag = _parts(b, x)
    of_real, of_imag = _parts(b, result)
    result = b.binary("complex", of_real, b.select(_is_zero(b, imag), imag, of_imag))
    zero, infinity = full(b, 0, real), full(b, math.inf, real)
    vanishing = b.compare("EQ", real, full(b, -math.inf, real))
    endless = b.compare("EQ", real, infinity)
    lost = b.not_(b.unary("is_finite", imag))
    nothing = b.select(below, full(b, -0.0, real), zero)
    limit_of_imag = b.select(vanishing, nothing, full(b, math.nan, real))
    limit = b.binary("complex", b.select(vanishing, zero, infinity), limit_of_imag)
    return b.select(b.and_(lost, b.or_(vanishing, endless)), limit, result)


def exponential_minus_one(b: Builder, x: SSAValue) -> SSAValue:
    """e^x - 1, with the signs of zero parts of x. The imaginary part is NaN for infinity."""
    result = b.unary("expm1", x)
    if not is_complex(dtype_of(x)):
        return result
    (real, imag), (of_real, of_imag) = _parts(b, x), _parts(b, result)
    real_axis = _is_zero(b, imag)
    of_real = b.select(real_axis, b.unary("expm1", real), b.select(_is_zero(b, of_real), real, of_real))
    return b.binary("complex", of_real, b.select(real_axis, b.mul(b.exp(real), imag), of_imag))


def log_plus_one(b: Builder, x: SSAValue) -> SSAValue:
    """log(1 + x), with the sign of a zero real part of x. Near -1 it is the logarithm of the sum, which XLA's own
    function takes for that of 0."""
    result = b.unary("log1p", x)
    if not is_complex(dtype_of(x)):
        return result
    (real, imag), (of_real, of_imag) = _parts(b, x), _parts(b, result)
    of_real = b.select(b.compare("EQ", x, full(b, 0, x)), real, of_real)
    total = with_number(b, "add", real, 1)
    near = b.compare("LT", b.abs(total), full(b, 0.5, total))
    logarithm = b.log(b.binary("complex", total, imag))
    return b.select(near, logarithm, b.binary("complex", of_real, of_imag))


def sine(b: Builder, x: SSAValue) -> SSAValue:
    """sin(x); of complex numbers -i sinh(i x)."""
    if not is_complex(dtype_of(x)):
        return b.unary("sin", x)
    real, imag = _parts(b, x)
    of_real, of_imag = _parts(b, b.unary("sinh", b.binary("complex", b.neg(imag), real)))
    return b.binary("complex", of_imag, b.neg(of_real))


def cosine(b: Builder, x: SSAValue) -> SSAValue:
    """cos(x); of complex numbers cosh(i x)."""
    if not is_complex(dtype_of(x)):
        return b.unary("cos", x)
    real, imag = _parts(b, x)
    return b.unary("cosh", b.binary("complex", b.neg(imag), real))


def hyperbolic_tangent(b: Builder, x: SSAValue) -> SSAValue:
    """tanh(x). At infinity, an imaginary part of 0 has the sign of an infinite one of x."""
    result = b.unary("tanh", x)
    if not is_complex(dtype_of(x)):
        return result
    (real, imag), (of_real, of_imag) = _parts(b, x), _parts(b, result)
    lost = b.and_(_is_infinite(b, real), _is_infinite(b, imag))
    return b.binary("complex", of_real, b.select(lost, signed(b, of_imag, signbit(b, imag)), of_imag))


def tangent(b: Builder, x: SSAValue) -> SSAValue:
    """tan(x); of complex numbers -i tanh(i x)."""
    if not is_complex(dtype_of(x)):
        return b.unary("tan", x)
    real, imag = _parts(b, x)
    of_real, of_imag = _parts(b, hyperbolic_tangent(b, b.binary("complex", b.neg(imag), real)))
    return b.binary("complex", of_imag, b.neg(of_real))


def odd(name: str) -> Callable[[Builder, SSAValue], SSAValue]:
    """The op `name`; the parts of its complex results have the signs of the argument's, and the angle of an arc tangent
    is NaN where that part of the argument is."""
    angle = {"atan": 0, "atanh": 1}.get(name)

    def function(b: Builder, x: SSAValue) -> SSAValue:
        result = b.unary(name, x)
        if not is_complex(dtype_of(x)):
            return result
        pairs = zip(_parts(b, x), _parts(b, result), strict=True)
        parts = [signed(b, of_part, signbit(b, part)) for part, of_part in pairs]
        if angle is not None:
            part = _parts(b, x)[angle]
            parts[angle] = b.select(b.compare("NE", part, part), part, parts[angle])
        return b.binary("complex", parts[0], parts[1])

    return function


def arc_cosine(b: Builder, x: SSAValue) -> SSAValue:
    """acos(x). The imaginary part's sign is opposite to that of x."""
    result = b.unary("acos", x)
    if not is_complex(dtype_of(x)):
        return result
    real, imag = _parts(b, result)
    return b.binary("complex", real, signed(b, imag, b.not_(signbit(b, b.unary("imag", x)))))


def area_cosine(b: Builder, x: SSAValue) -> SSAValue:
    """acosh(x). The imaginary part has the sign of that of x."""
    result = b.unary("acosh", x)
    if not is_complex(dtype_of(x)):
        return result
    real, imag = _parts(b, result)
    return b.binary("complex", b.abs(real), signed(b, imag, signbit(b, b.unary("imag", x))))


def logistic(b: Builder, x: SSAValue) -> SSAValue:
    """1 / (1 + e^-x), spelled where complex x or e^-x are not finite."""
    result = b.unary("logistic", x)
    if not is_complex(dtype_of(x)):
        return result
    power = exponential(b, b.neg(x))
    spelled = b.div(full(b, 1, x), with_number(b, "add", power, 1))
    return b.select(b.and_(_is_usual(b, x), _is_usual(b, power)), result, spelled)


def power_of_two(b: Builder, x: SSAValue) -> SSAValue:
    """2^x."""
    if not is_complex(dtype_of(x)):
        return b.binary("pow", full(b, 2, x), x)
    real, imag = (with_number(b, "mul", part, math.log(2)) for part in _parts(b, x))
    return exponential(b, b.binary("complex", real, imag))


def power(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """x^y. Of a complex 0, and where complex numbers or the result are not finite, e^(y log x) by one product, as the
    CPU's library computes it: where the imaginary part of that is NaN, x86 processors make it a negative one."""
    result = b.binary("pow", x, y)
    if not is_complex(dtype_of(x)):
        return result
    (real, imag), (of_log, phase) = _parts(b, y), _parts(b, b.log(x))
    angle = b.add(b.mul(real, phase), b.mul(imag, of_log))
    product = b.binary("complex", b.sub(b.mul(real, of_log), b.mul(imag, phase)), angle)
    limit = _exponential(b, product, b.not_(b.compare("GT", angle, full(b, 0, angle))))
    usual = b.and_(_is_usual(b, result), b.and_(_is_usual(b, x), _is_usual(b, y)))
    usual = b.and_(b.compare("NE", x, full(b, 0, x)), usual)
    return b.select(usual, result, limit)
