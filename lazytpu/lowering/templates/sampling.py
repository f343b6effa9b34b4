"""Random numbers that are drawn in a loop, and derivatives of samples."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from lazytpu.lowering.templates.registry import template


@template("binomial")
def binomial(key: jax.Array, count: jax.Array, p: jax.Array) -> jax.Array:
    """The number of successes in `count` trials of probability p, in the dtype of both (f32 or f64). The key is two
    ui32 words."""
    keys = jax.random.wrap_key_data(key, impl="threefry2x32")
    return jax.random.binomial(keys, count, p, shape=count.shape, dtype=count.dtype)


# Coefficients of `dirichlet_grad_one` in ATen/native/Distributions.h: (numerator, denominator) x powers of log x
# x powers of a x powers of b.
_CORRECTION = np.array(
    [
        [
            [
                [1.003668233, -0.01061107488, -0.0657888334, 0.01201642863],
                [0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033],
                [-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013],
            ],
            [
                [0.221950385, -0.3187676331, 0.01799915743, 0.01074823814],
                [-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057],
                [0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05],
            ],
            [
                [-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565],
                [0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181],
                [0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05],
            ],
        ],
        [
            [
                [1, -0.02924021934, -0.04438342661, 0.007285809825],
                [0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521],
                [-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149],
            ],
            [
                [0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273],
                [0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956],
                [-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05],
            ],
            [
                [0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05],
                [0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05],
                [-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06],
            ],
        ],
    ]
)


@template("dirichlet_grad")
def dirichlet_grad(x: jax.Array, alpha: jax.Array, total: jax.Array) -> jax.Array:
    """The derivative of a Beta(alpha, total - alpha) sample x by alpha, divided by 1 - x: torch's four approximations
    (`dirichlet_grad_one` in ATen/native/Distributions.h), in f64, which torch uses too for the two that cancel."""
    dtype = x.dtype
    x, alpha, total = (v.astype(jnp.float64) for v in (x, alpha, total))
    beta = total - alpha
    boundary = total * x * (1 - x)
    near_zero = (x <= 0.5) & (boundary < 2.5)
    near_one = (x >= 0.5) & (boundary < 0.75)
    result = jnp.where((alpha > 6) & (beta > 6), _saddle_point(x, alpha, beta), _corrected(x, alpha, beta))
    result = jnp.where(near_one, -_beta_small(1 - x, beta, alpha), result)
    return jnp.where(near_zero, _alpha_small(x, alpha, beta), result).astype(dtype)


def _alpha_small(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """Taylor series for x near 0."""
    factor = jax.lax.digamma(alpha) - jax.lax.digamma(alpha + beta) - jnp.log(x)
    term, series = jnp.ones_like(x), (factor + 1 / alpha) / alpha
    for i in range(1, 11):
        term = term * (i - beta) * x / i
        series = series + term / (alpha + i) * (factor + 1 / (alpha + i))
    result = x * (1 - x) ** -beta * series
    return jnp.where(jnp.isnan(result), 0, result)


def _beta_small(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """Taylor series of the derivative by beta, for x near 0."""
    factor = jax.lax.digamma(alpha + beta) - jax.lax.digamma(beta)
    term, betas, slopes, series = jnp.ones_like(x), jnp.ones_like(x), jnp.zeros_like(x), factor / alpha
    for i in range(1, 9):
        term = term * -x / i
        slopes = slopes * (beta - i) + betas
        betas = betas * (beta - i)
        series = series + term / (alpha + i) * (slopes + factor * betas)
    result = -((1 - x) ** (1 - beta)) * series
    return jnp.where(jnp.isnan(result), 0, result)


def _saddle_point(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """Rice's expansion for large alpha and beta, and a polynomial around the mean, where it is 0 / 0."""
    total = alpha + beta
    mean = alpha / total
    std = jnp.sqrt(alpha * beta / (total + 1)) / total
    b2, b3, b4 = beta**2, beta**3, beta**4
    inner = 3 * (59 + 180 * beta - 90 * x) * b2
    inner = inner + alpha * ((453 + 1620 * beta * (1 - x) - 455 * x) * beta + alpha * (8 * (1 - x) * (135 * beta - 11)))
    polynomial = 47 * x * b4 + alpha * ((43 + 20 * (16 + 27 * beta) * x) * b3 + alpha * inner)
    scale = (1 + 12 * alpha) * (1 + 12 * beta) / total**2 / (12960 * alpha**3 * b2 * (1 + 12 * total))
    around_mean = scale / (1 - x) * polynomial

    def stirling(v: jax.Array) -> jax.Array:
        return 1 + 1 / (12 * v) + 1 / (288 * v * v)

    offset = alpha * (x - 1) + beta * x
    first = 2 * alpha**2 * (x - 1) + alpha * beta * (x - 1) - x * b2
    first = first / (jnp.sqrt(2 * alpha / beta) * total**1.5 * offset**2)
    log_alpha, log_beta = jnp.log(alpha / (total * x)), jnp.log(beta / (total * (1 - x)))
    third = jnp.sqrt(8 * alpha * beta / total) / offset
    fourth = (beta * log_beta + alpha * log_alpha) ** -1.5
    terms = first + 0.5 * log_alpha * (third + jnp.where(x < mean, fourth, -fourth))
    expansion = stirling(alpha) * stirling(beta) / stirling(total) * (-x / jnp.sqrt(2 * alpha * beta / total)) * terms
    return jnp.where(jnp.abs(x - mean) <= 0.1 * std, around_mean, expansion)


def _corrected(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """A rational correction of an analytic approximation."""
    total = alpha + beta
    u = jnp.log(x)
    a = jnp.log(alpha) - u
    b = jnp.log(total) - a
    powers_u, powers_a, powers_b = (jnp.stack([v**i for i in range(n)]) for v, n in ((u, 3), (a, 3), (b, 4)))
    p, q = jnp.einsum("cijk,i...,j...,k...->c...", _CORRECTION, powers_u, powers_a, powers_b)
    return p / q * x * (jax.lax.digamma(total) - jax.lax.digamma(alpha)) / beta
