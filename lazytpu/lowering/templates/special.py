"""Special functions that neither StableHLO nor CHLO has, elementwise on f32 and f64."""

from __future__ import annotations

import jax

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
    """Logarithm of the normal distribution function, exact for x far below 0."""
    return jax.scipy.special.log_ndtr(x)


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
