"""Bessel and Airy functions and the scaled complementary error function, elementwise on f32 and f64, from the
coefficients in `bessel_series.py`, `airy_series.py` and `erfcx_series.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates import airy_series, bessel_series, erfcx_series
from lazytpu.lowering.templates.registry import template


def chebyshev(coefficients: Sequence[float], t: jax.Array, low: float, high: float) -> jax.Array:
    """The sum of c[k] T_k(u) with u = -1 at t = low and 1 at t = high, by Clenshaw's recurrence."""
    u = (2 * t - (low + high)) / (high - low)
    last, before = jnp.zeros_like(t), jnp.zeros_like(t)
    for c in reversed(coefficients[1:]):
        last, before = 2 * u * last - before + c, last
    return u * last - before + coefficients[0]


def _far(x: jax.Array, order: int) -> tuple[jax.Array, jax.Array]:
    """(J, Y) for x > 5, from modulus and phase."""
    p, q = ((bessel_series.P0, bessel_series.Q0), (bessel_series.P1, bessel_series.Q1))[order]
    t = 25 / (x * x)
    phase = x - math.pi * (2 * order + 1) / 4
    along, across = chebyshev(p, t, 0, 1), 5 / x * chebyshev(q, t, 0, 1)
    size = jnp.sqrt(2 / math.pi / x)
    cos, sin = jnp.cos(phase), jnp.sin(phase)
    return size * (along * cos - across * sin), size * (along * sin + across * cos)


def _near(x: jax.Array, order: int) -> jax.Array:
    """J for 0 <= x <= 5."""
    t = x * x
    return chebyshev(bessel_series.J0, t, 0, 25) if order == 0 else x * chebyshev(bessel_series.J1, t, 0, 25)


def _first(x: jax.Array, order: int) -> jax.Array:
    size = jnp.abs(x)
    small = size <= 5
    result = jnp.where(small, _near(jnp.where(small, size, 1), order), _far(jnp.where(small, 6, size), order)[0])
    return jnp.where(x < 0, -result, result) if order else result


def _second(x: jax.Array, order: int) -> jax.Array:
    small = x <= 5
    near = jnp.where(small, x, 1)
    t = near * near
    logarithm = jnp.log(near) * _near(near, order)
    if order == 0:
        inner = chebyshev(bessel_series.Y0, t, 0, 25) + 2 / math.pi * logarithm
    else:
        inner = near * chebyshev(bessel_series.Y1, t, 0, 25) + 2 / math.pi * (logarithm - 1 / near)
    result = jnp.where(small, inner, _far(jnp.where(small, 6, x), order)[1])
    return jnp.where(x == 0, -jnp.inf, jnp.where(x < 0, jnp.nan, result))


@template("bessel_j0")
def bessel_j0(x: jax.Array) -> jax.Array:
    """Bessel function of the first kind, order 0."""
    return _first(x, 0)


@template("bessel_j1")
def bessel_j1(x: jax.Array) -> jax.Array:
    """Bessel function of the first kind, order 1; -0.0 at -0.0, as the CPU has it."""
    return jnp.where(x == 0, x, _first(x, 1))


@template("bessel_y0")
def bessel_y0(x: jax.Array) -> jax.Array:
    """Bessel function of the second kind, order 0: -inf at 0, NaN below."""
    return _second(x, 0)


@template("bessel_y1")
def bessel_y1(x: jax.Array) -> jax.Array:
    """Bessel function of the second kind, order 1: -inf at 0, NaN below."""
    return _second(x, 1)


@template("bessel_k")
def bessel_k(x: jax.Array, *, order: int, scaled: bool) -> jax.Array:
    """Modified Bessel function of the second kind, order 0 or 1, times e^x when scaled: inf at 0, NaN below."""
    small = x <= 2
    near = jnp.where(small, x, 1)
    t, logarithm = near * near, jnp.log(near / 2)
    if order == 0:
        inner = chebyshev(bessel_series.K0, t, 0, 4) - logarithm * chebyshev(bessel_series.I0, t, 0, 4)
    else:
        inner = chebyshev(bessel_series.K1, t, 0, 4) / near + logarithm * near * chebyshev(bessel_series.I1, t, 0, 4)
    far = jnp.where(small, 3, x)
    outer = chebyshev((bessel_series.K0_FAR, bessel_series.K1_FAR)[order], 2 / far, 0, 1) / jnp.sqrt(far)
    value = jnp.where(small, inner * jnp.exp(near), outer) if scaled else jnp.where(small, inner, outer * jnp.exp(-far))
    return jnp.where(x == 0, jnp.inf, jnp.where(x < 0, jnp.nan, value))


@template("airy_ai")
def airy_ai(x: jax.Array) -> jax.Array:
    """Airy function Ai: 0 above 103.892, NaN at the infinities."""
    size = jnp.abs(x)
    inside = size <= 2.1
    near = jnp.where(inside, x, 0)
    far = jnp.where(inside, 3, jnp.where(jnp.isinf(x), 3, size))
    z = 2 / 3 * far * jnp.sqrt(far)
    root = jnp.sqrt(jnp.sqrt(far)) * math.sqrt(math.pi)
    decaying = chebyshev(airy_series.FAR, 1 / z, 0, 0.5) * jnp.exp(-z) / (2 * root)
    along = chebyshev(airy_series.P, 1 / (z * z), 0, 0.25)
    across = chebyshev(airy_series.Q, 1 / (z * z), 0, 0.25) / z
    turning = (jnp.cos(z - math.pi / 4) * along + jnp.sin(z - math.pi / 4) * across) / root
    result = jnp.where(inside, chebyshev(airy_series.NEAR, near, -2.1, 2.1), jnp.where(x > 0, decaying, turning))
    return jnp.where(jnp.isinf(x), jnp.nan, jnp.where(x > 103.892, 0, result))


@template("spherical_bessel_j0")
def spherical_bessel_j0(x: jax.Array) -> jax.Array:
    """sin(x) / x; its Taylor series near 0."""
    t = x * x
    near = jnp.ones_like(x)
    for k in range(6, 0, -1):
        near = 1 - t / (2 * k * (2 * k + 1)) * near
    result = jnp.where(jnp.abs(x) < 0.5, near, jnp.sin(x) / x)
    return jnp.where(jnp.isinf(x), 0, result)


@template("erfcx")
def erfcx(x: jax.Array) -> jax.Array:
    """e^(x^2) erfc(x), which neither overflows nor underflows for x > 0."""
    size = jnp.abs(x)
    t = jnp.where(jnp.isinf(size), 1, (size - 3) / (size + 3))
    total = jnp.zeros_like(x)
    for c in reversed(erfcx_series.ERFCX["f64" if x.dtype == jnp.float64 else "f32"]):
        total = total * t + c
    result = total / (1 + 2 * size)
    return jnp.where(x < 0, 2 * jnp.exp(x * x) - result, result)
