"""Special functions. Most are templates, that is JAX functions, computed in f32 or f64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lazytpu.aten.pointwise.operands import finish, float_type, full, operands, pointwise, with_number
from lazytpu.aten.pointwise.unary import digamma
from lazytpu.aten.registry import rule
from lazytpu.ir.types import bitwidth, dtype_of, is_unsigned, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def from_template(b: Builder, name: str, *xs: SSAValue, **params: Any) -> SSAValue:
    """A template whose result has the dtype and shape of its first operand."""
    return b.template(name, xs, [(dtype_of(xs[0]), shape_of(xs[0]))], **params)[0]


# ATen op of one tensor -> template and its parameters.
UNARY: dict[str, tuple[str, dict[str, Any]]] = {
    "i0": ("bessel_i0", {}),
    "special_i0e": ("bessel_i0e", {}),
    "special_i1": ("bessel_i1", {}),
    "special_modified_bessel_i0": ("bessel_i0", {}),
    "special_modified_bessel_i1": ("bessel_i1", {}),
    "special_modified_bessel_k0": ("bessel_k", {"order": 0, "scaled": False}),
    "special_modified_bessel_k1": ("bessel_k", {"order": 1, "scaled": False}),
    "special_scaled_modified_bessel_k0": ("bessel_k", {"order": 0, "scaled": True}),
    "special_scaled_modified_bessel_k1": ("bessel_k", {"order": 1, "scaled": True}),
    "special_bessel_j0": ("bessel_j0", {}),
    "special_bessel_j1": ("bessel_j1", {}),
    "special_bessel_y0": ("bessel_y0", {}),
    "special_bessel_y1": ("bessel_y1", {}),
    "special_spherical_bessel_j0": ("spherical_bessel_j0", {}),
    "special_airy_ai": ("airy_ai", {}),
    "special_erfcx": ("erfcx", {}),
    "special_ndtri": ("ndtri", {}),
    "special_log_ndtr": ("log_ndtr", {}),
}

# ATen op of a point and a degree -> template and its parameters.
POLYNOMIALS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"special_{prefix}chebyshev_polynomial_{kind}": (
            "chebyshev_polynomial",
            {"kind": kind, "shifted": bool(prefix)},
        )
        for prefix in ("", "shifted_")
        for kind in "tuvw"
    },
    "special_hermite_polynomial_h": ("hermite_polynomial", {"physicist": True}),
    "special_hermite_polynomial_he": ("hermite_polynomial", {"physicist": False}),
    "special_laguerre_polynomial_l": ("laguerre_polynomial", {}),
    "special_legendre_polynomial_p": ("legendre_polynomial", {}),
}


# Ops whose schema calls the tensor `x` instead of `self`.
NAMED_X = (
    "special_scaled_modified_bessel_k0",
    "special_scaled_modified_bessel_k1",
    "special_spherical_bessel_j0",
    "special_airy_ai",
)


def _unary(op: str, name: str, params: dict[str, Any]) -> None:
    def of_self(b: Builder, self: SSAValue) -> SSAValue:
        return from_template(b, name, self, **params)

    def of_x(b: Builder, x: SSAValue) -> SSAValue:
        return from_template(b, name, x, **params)

    pointwise(f"aten.{op}.default", floating=True)(of_x if op in NAMED_X else of_self)


def _polynomial(op: str, name: str, params: dict[str, Any]) -> None:
    @pointwise(f"aten.{op}.default", f"aten.{op}.x_scalar", f"aten.{op}.n_scalar", floating=True)
    def polynomial(b: Builder, x: SSAValue, n: SSAValue) -> SSAValue:
        return from_template(b, name, x, n, **params)


for _op, (_name, _params) in UNARY.items():
    _unary(_op, _name, _params)
for _op, (_name, _params) in POLYNOMIALS.items():
    _polynomial(_op, _name, _params)


@pointwise("aten.special_i1e.default", floating=True)
def i1e(b: Builder, self: SSAValue) -> SSAValue:
    """Modified Bessel function of the first kind, order 1, times e^-|x|; 0.0 at -0.0, as the CPU has it."""
    return b.select(b.compare("EQ", self, full(b, 0, self)), full(b, 0, self), b.unary("bessel_i1e", self))


@pointwise("aten.igamma.default")
def igamma(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """Regularised lower incomplete gamma function."""
    return from_template(b, "igamma", self, other)


@pointwise("aten.igammac.default")
def igammac(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """Regularised upper incomplete gamma function."""
    return from_template(b, "igammac", self, other)


@pointwise(
    "aten.special_zeta.default", "aten.special_zeta.self_scalar", "aten.special_zeta.other_scalar", floating=True
)
def zeta(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """Hurwitz zeta function of self at other: inf at self = 1 and at the poles 0, -1, -2, …, NaN for self < 1.

    The backend's series is for q > 0. For negative q and integer s, with g = ceil(q) - q, terms of either sign are
    summed separately: zeta(s, q) = zeta(s, 1 - g) + (-1)^s (zeta(s, g) - zeta(s, 1 - q)). For other s it is NaN. In
    f64, as the difference cancels.
    """
    dtype = dtype_of(other)
    s, q = (b.convert(x, "f64") for x in (self, other))
    one, negative = full(b, 1, q), b.compare("LT", q, full(b, 0, q))
    g = b.sub(b.unary("ceil", q), q)
    g = b.select(b.compare("GT", g, full(b, 0, g)), g, one)  # not at integers
    below = b.sub(_hurwitz(b, s, g), _hurwitz(b, s, b.sub(one, b.select(negative, q, full(b, 0, q)))))
    even = b.compare("EQ", with_number(b, "rem", s, 2), full(b, 0, s))
    below = b.select(even, below, b.neg(below))
    below = b.select(b.compare("EQ", s, b.unary("floor", s)), below, full(b, math.nan, below))
    above = _hurwitz(b, s, b.select(negative, b.sub(one, g), q))
    result = b.select(negative, b.add(above, below), above)
    pole = b.and_(b.compare("LE", q, full(b, 0, q)), b.compare("EQ", q, b.unary("floor", q)))
    endless = b.and_(negative, b.compare("EQ", s, full(b, math.inf, s)))
    pole = b.or_(b.or_(pole, endless), b.compare("EQ", s, full(b, 1, s)))
    result = b.select(pole, full(b, math.inf, q), result)
    return b.convert(b.select(b.compare("LT", s, full(b, 1, s)), full(b, math.nan, s), result), dtype)


def _hurwitz(b: Builder, s: SSAValue, q: SSAValue) -> SSAValue:
    return from_template(b, "zeta_at_extremes", s, q, b.binary("zeta", s, q))


@rule("aten.polygamma.default")
def polygamma(b: Builder, n: int, self: SSAValue) -> SSAValue:
    """The n-th derivative of digamma: (-1)^(n+1) n! zeta(n + 1, x), with its limit 0 at inf."""
    (x,) = operands(b, self, common=float_type(self))
    if n == 0:
        return finish(b, digamma(b, x))
    if n == 1:
        return finish(b, _trigamma(b, x))
    factor = math.exp(math.lgamma(n + 1))
    return finish(b, with_number(b, "mul", zeta(b, full(b, n + 1, x), x), factor if n % 2 else -factor))


def _trigamma(b: Builder, x: SSAValue) -> SSAValue:
    """The derivative of digamma; below 1/2 by reflection (`trigamma` in Math.h), NaN at -inf."""
    low = b.compare("LT", x, full(b, 0.5, x))
    sine = b.unary("sin", with_number(b, "mul", x, math.pi))
    folded = b.select(low, b.sub(full(b, 1, x), x), x)
    result = from_template(b, "trigamma", folded)
    result = b.select(b.compare("EQ", folded, full(b, math.inf, x)), full(b, 0, x), result)
    return b.select(low, b.sub(b.div(full(b, math.pi**2, x), b.mul(sine, sine)), result), result)


@rule("aten.mvlgamma.default")
def mvlgamma(b: Builder, self: SSAValue, p: int) -> SSAValue:
    """log of the multivariate gamma function: p (p - 1) / 4 log(pi) + sum of lgamma(x - j / 2) for j < p."""
    (x,) = operands(b, self, common=float_type(self))
    total = full(b, p * (p - 1) / 4 * math.log(math.pi), x)
    for j in range(p):
        total = b.add(total, b.unary("lgamma", with_number(b, "sub", x, j / 2)))
    return finish(b, total)


@pointwise("aten.special_entr.default", floating=True)
def entr(b: Builder, self: SSAValue) -> SSAValue:
    """-x log(x): 0 at 0, -inf below."""
    zero = full(b, 0, self)
    inside = b.select(b.compare("EQ", self, zero), zero, b.neg(b.mul(self, b.log(self))))
    return b.select(b.compare("LT", self, zero), full(b, -math.inf, self), inside)


@pointwise("aten.gcd.default")
def gcd(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """Greatest common divisor."""
    return from_template(b, "gcd", self, other)


@pointwise("aten.lcm.default")
def lcm(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """Least common multiple: |self / gcd * other|, and 0 when both are 0."""
    dtype = dtype_of(self)
    if bitwidth(dtype) < 32:  # the product may overflow; C++ computes it as an int
        wider = lcm(b, b.convert(self, "i32"), b.convert(other, "i32"))
        return b.convert(wider, dtype)
    divisor = gcd(b, self, other)
    zero = b.compare("EQ", divisor, full(b, 0, divisor))
    multiple = b.mul(b.div(self, b.select(zero, full(b, 1, divisor), divisor)), other)
    return multiple if is_unsigned(dtype) else b.abs(multiple)
