"""Special functions that neither StableHLO nor CHLO has, elementwise on f32 and f64."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates import lgamma_series
from lazytpu.lowering.templates.bessel import chebyshev, erfcx
from lazytpu.lowering.templates.registry import template


@template("igamma")
def igamma(a: jax.Array, x: jax.Array) -> jax.Array:
    """Regularized lower incomplete gamma function."""
    return jax.lax.igamma(a, x)


@template("igammac")
def igammac(a: jax.Array, x: jax.Array) -> jax.Array:
    """Regularized upper incomplete gamma function."""
    return jax.lax.igammac(a, x)


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
    """Modified Bessel function of the first kind, order 1."""
    return jax.scipy.special.i1(x)


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
