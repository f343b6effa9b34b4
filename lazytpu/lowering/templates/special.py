"""Special functions that neither StableHLO nor CHLO has, elementwise on f32 and f64."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates import lgamma_series
from lazytpu.lowering.templates.bessel import chebyshev, erfcx
from lazytpu.lowering.templates.registry import template


@template("igamma")
def igamma(a: jax.Array, x: jax.Array) -> jax.Array:
    """Regularized lower incomplete gamma function."""
    return _at_limits(a, x, _inside(jax.lax.igamma, a, x), 0)


@template("igammac")
def igammac(a: jax.Array, x: jax.Array) -> jax.Array:
    """Regularized upper incomplete gamma function."""
    return _at_limits(a, x, _inside(_upper, a, x), 1)


def _upper(a: jax.Array, x: jax.Array) -> jax.Array:
    """XLA's, but for small a and x, where that is 1 minus the lower function, by the series in x for the upper one
    (`igammac_series` of ATen/native/Math.h)."""
    small = jnp.where(x <= 0.5, a * -jnp.log(x) <= 0.4, (x <= 1.1) & (a <= 1.1 * x))
    a_small, x_small = jnp.where(small, a, 1), jnp.where(small, x, 1)
    total, power = jnp.zeros_like(x), jnp.ones_like(x)
    for n in range(1, 22):  # 1.1^21 / 21! is below the last bit
        power = power * -x_small / n
        total = total + power / (a_small + n)
    of_one_more = a_small * (a_small - 1) * chebyshev(lgamma_series.LOW, 1 + a_small, 1, 3)  # lgamma(1 + a)
    exponent = a_small * jnp.log(x_small) - of_one_more
    series = -jnp.expm1(exponent) - a_small * jnp.exp(exponent) * total
    return jnp.where(small, series, jax.lax.igammac(jnp.where(small, 1, a), jnp.where(small, 1, x)))


def _inside(function: Callable[[jax.Array, jax.Array], jax.Array], a: jax.Array, x: jax.Array) -> jax.Array:
    """Of finite positive numbers, in float64: the prefactor e^(a log x - x - lgamma(a)) loses the digits of a. XLA's
    series give NaN at limits (https://github.com/openxla/xla/blob/main/xla/hlo/builder/lib/math.cc)."""
    usual = (a > 0) & (x > 0) & jnp.isfinite(a) & jnp.isfinite(x)
    inside = function(*(jnp.where(usual, v, 1).astype(jnp.float64) for v in (a, x))).astype(x.dtype)
    return jnp.where(jnp.isnan(a) | jnp.isnan(x), jnp.nan, inside)


def _at_limits(a: jax.Array, x: jax.Array, inside: jax.Array, least: int) -> jax.Array:
    """The function with its limits, as `calc_igamma` of ATen/native/Math.h has them. `least` is its value at x = 0."""
    end = jnp.where((x == 0) & (a != 0) | jnp.isinf(a), least, 1 - least)
    limited = (a == 0) | (x == 0) | jnp.isinf(a) | jnp.isinf(x)
    undefined = (x < 0) | (a < 0) | ((a == 0) & ~(x > 0)) | (jnp.isinf(a) & jnp.isinf(x))
    return jnp.where(undefined, jnp.nan, jnp.where(limited, end, inside))


@template("zeta_at_extremes")
def zeta_at_extremes(s: jax.Array, q: jax.Array, usual: jax.Array) -> jax.Array:
    """`usual`, XLA's Hurwitz zeta function of s > 1 at q > 0, where its terms neither overflow nor become subnormal
    numbers, which XLA's CPU client takes for 0."""
    terms = jnp.arange(1, 20, dtype=q.dtype).reshape(-1, *[1] * q.ndim)
    later = ((q / (q + terms)) ** s).sum(0)  # of the first; those after 20 are below its last bit
    of_large_order = jnp.where(jnp.isinf(s) & (q > 1), jnp.nan, q**-s * (1 + later))  # NaN on the CPU, too
    far = (1 / (s - 1) + 0.5 / q) * q ** (1 - s)
    large = s > (200 if q.dtype == jnp.float64 else 30)
    return jnp.where(large, of_large_order, jnp.where((q > 1e9) & jnp.isfinite(q), far, usual))


@template("betainc")
def betainc(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    """Regularized incomplete beta function."""
    return jax.lax.betainc(a, b, x)


@template("bessel_i0")
def bessel_i0(x: jax.Array) -> jax.Array:
    """Modified Bessel function of the first kind, order 0."""
    return jax.scipy.special.i0(x)


@template("bessel_i0e")
def bessel_i0e(x: jax.Array) -> jax.Array:
    """`bessel_i0` times e^-|x|."""
    return jax.scipy.special.i0e(x)


@template("bessel_i1")
def bessel_i1(x: jax.Array) -> jax.Array:
    """Modified Bessel function of the first kind, order 1; 0.0 at -0.0, as the CPU has it."""
    return jnp.where(x == 0, 0, jax.scipy.special.i1(x))


@template("ndtri")
def ndtri(x: jax.Array) -> jax.Array:
    """Inverse of the normal distribution function."""
    return jax.scipy.special.ndtri(x)


@template("log_ndtr")
def log_ndtr(x: jax.Array) -> jax.Array:
    """Logarithm of the normal distribution function, as exact far from 0 as near it."""
    low = x < -1
    below = jnp.where(low, x, -1) * -math.sqrt(0.5)
    tail = jnp.log(erfcx(below) / 2) - below * below
    above = -jax.lax.erfc(jnp.where(low, 0, x) * math.sqrt(0.5)) / 2
    small = above > -0.25  # XLA's log1p of f64 loses 50 ulp beyond
    near = jnp.where(small, jnp.log1p(jnp.where(small, above, 0)), jnp.log(1 + above))
    return jnp.where(low, tail, near)


@template("lgamma")
def lgamma(x: jax.Array) -> jax.Array:
    """log |gamma(x)|, as exact near its zeros 1 and 2 as elsewhere; by reflection below 0."""
    size = jnp.abs(x)
    middle = size <= 8
    low = jnp.where(size < 1, size + 1, jnp.where(size < 3, size, 2))  # log(gamma(x)) = log(gamma(x + 1)) - log(x)
    before, beyond = jnp.where(size < 1, size, low - 1), jnp.where(size < 1, size - 1, low - 2)  # low is rounded
    near = before * beyond * chebyshev(lgamma_series.LOW, low, 1, 3)
    near = jnp.where(size < 1, near - jnp.log(size), jnp.where(near == 0, 0, near))  # no -0.0
    high = jnp.where(middle & (size >= 3), size, 3)
    near = jnp.where(size < 3, near, (high - 1) * (high - 2) * chebyshev(lgamma_series.HIGH, high, 3, 8))
    far = jnp.where(middle, 9, size)
    tail = chebyshev(lgamma_series.FAR, 1 / (far * far), 0, 1 / 64) / far
    positive = jnp.where(middle, near, (far - 0.5) * (jnp.log(far) - 1) + (0.5 * math.log(2 * math.pi) - 0.5 + tail))
    fraction = size - jnp.floor(size)
    sine = jnp.sin(math.pi * jnp.where(fraction > 0.5, 1 - fraction, fraction))
    negative = -jnp.log(size * sine / math.pi) - positive
    tiny = size < jnp.finfo(x.dtype).eps
    negative = jnp.where(tiny, -jnp.log(size), jnp.where((fraction == 0) | jnp.isinf(x), jnp.inf, negative))
    return jnp.where(jnp.isnan(x), x, jnp.where(jnp.isinf(x), jnp.inf, jnp.where(x < 0, negative, positive)))


@template("trigamma")
def trigamma(x: jax.Array) -> jax.Array:
    """The derivative of digamma for x >= 1/2: steps of its recurrence, then its asymptotic series."""
    steps, at = jnp.zeros_like(x), x
    for _ in range(12 if x.dtype == jnp.float64 else 6):  # the series ends below the last bit
        steps, at = steps + 1 / (at * at), at + 1
    t = 1 / (at * at)
    series = jnp.zeros_like(x)
    for bernoulli in (7 / 6, -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6):
        series = (series + bernoulli) * t
    return steps + (1 + series + 0.5 / at) / at


@template("poisson")
def poisson(key: jax.Array, rate: jax.Array) -> jax.Array:
    """Poisson samples with these rates, in the dtype of `rate`. The key is two ui32 words."""
    numbers = jax.random.poisson(jax.random.wrap_key_data(key, impl="threefry2x32"), rate, shape=rate.shape)
    return numbers.astype(rate.dtype)


@template("standard_gamma")
def standard_gamma(key: jax.Array, alpha: jax.Array) -> jax.Array:
    """Gamma samples with shape parameters `alpha` and scale 1, in the dtype of `alpha`. The key is two ui32 words."""
    return jax.random.gamma(
        jax.random.wrap_key_data(key, impl="threefry2x32"), alpha, shape=alpha.shape, dtype=alpha.dtype
    )


@template("standard_gamma_grad")
def standard_gamma_grad(alpha: jax.Array, sample: jax.Array) -> jax.Array:
    """Derivative of a gamma sample by its shape parameter."""
    return jax.lax.random_gamma_grad(alpha, sample)  # pyright: ignore[reportCallIssue]
