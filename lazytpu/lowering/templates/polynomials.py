"""Orthogonal polynomials of run-time degree, elementwise on f32 and f64; the degree is a float, truncated to an
integer.

A polynomial of negative degree is 0. A recurrence runs to the largest degree; each element stops at its own.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates.registry import template

Step = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]

HERMITE_LIMIT = {jnp.dtype("float32"): 128, jnp.dtype("float64"): 512}  # getHermitianLimit in ATen/native/Math.h


def degree(n: jax.Array) -> jax.Array:
    """n truncated to an integer; -1, whose polynomial is 0, where an i64 does not hold it, as x86 converts it."""
    return jnp.where(jnp.abs(n) < 2.0**63, jnp.trunc(n), -1)


def recurrence(x: jax.Array, n: jax.Array, first: jax.Array, step: Step) -> jax.Array:
    """p_n from p_0 = 1, p_1 = first and p_(k+1) = step(x, k, p_k, p_(k-1)); NaN ends it early."""

    def advance(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        count, current, before = state
        k = count.astype(x.dtype)
        following = step(x, k, current, before)
        running = (k < n) & ~jnp.isnan(current)
        return count + 1, jnp.where(running, following, current), jnp.where(running, current, before)

    def unfinished(state: tuple[jax.Array, ...]) -> jax.Array:
        return jnp.any((state[0].astype(x.dtype) < n) & ~jnp.isnan(state[1]))

    start = (jnp.ones((), jnp.int64), first, jnp.ones_like(x))
    _, value, _ = jax.lax.while_loop(unfinished, advance, start)
    return jnp.where(n < 0, 0, jnp.where(n == 0, 1, value))


def _chebyshev_step(x: jax.Array, k: jax.Array, current: jax.Array, before: jax.Array) -> jax.Array:
    return 2 * x * current - before


# p_1 of each kind, and the value at 1 and (times the sign of the degree's parity) at -1 for degree n.
CHEBYSHEV = {
    "t": (lambda x: x, lambda n: jnp.ones_like(n), lambda n: jnp.ones_like(n)),
    "u": (lambda x: 2 * x, lambda n: n + 1, lambda n: n + 1),
    "v": (lambda x: 2 * x - 1, lambda n: jnp.ones_like(n), lambda n: 2 * n + 1),
    "w": (lambda x: 2 * x + 1, lambda n: 2 * n + 1, lambda n: jnp.ones_like(n)),
}


def _by_angle(kind: str, x: jax.Array, n: jax.Array) -> jax.Array:
    """The polynomial for |x| < 1, from the angle whose cosine is x."""
    angle = jnp.arccos(x)
    if kind == "t":
        return jnp.cos(n * angle)
    if kind == "u":
        return jnp.sin((n + 1) * angle) / jnp.sin(angle)
    if kind == "v":
        return jnp.cos((n + 0.5) * angle) / jnp.cos(angle / 2)
    return jnp.sin((n + 0.5) * angle) / jnp.sin(angle / 2)


@template("chebyshev_polynomial")
def chebyshev_polynomial(x: jax.Array, n: jax.Array, *, kind: str, shifted: bool) -> jax.Array:
    """Chebyshev polynomial of the first to fourth kind ("t" to "w"), of x or of 2x - 1: from the angle inside (-1, 1)
    for degrees above 8, by recurrence elsewhere."""
    first, at_one, at_minus_one = CHEBYSHEV[kind]
    x, n = (2 * x - 1 if shifted else x), degree(n)
    inside = (jnp.abs(x) < 1) & (n > 8)
    by_steps = recurrence(x, jnp.where(inside, 0, n), first(x), _chebyshev_step)
    value = jnp.where(inside, _by_angle(kind, jnp.where(inside, x, 0), n), by_steps)
    sign = jnp.where(n % 2 == 0, 1, -1)
    value = jnp.where(x == 1, at_one(n), jnp.where(x == -1, sign * at_minus_one(n), value))
    return jnp.where(n < 0, 0, value).astype(x.dtype)


@template("hermite_polynomial")
def hermite_polynomial(x: jax.Array, n: jax.Array, *, physicist: bool) -> jax.Array:
    """Hermite polynomial H_n (physicist's) or He_n; NaN above the degree that torch computes."""
    n, scale = degree(n), 2 if physicist else 1
    limit = HERMITE_LIMIT[x.dtype]
    value = recurrence(x, jnp.minimum(n, limit), scale * x, lambda x, k, p, q: scale * (x * p - k * q))
    return jnp.where(n > limit, jnp.nan, value)


@template("laguerre_polynomial")
def laguerre_polynomial(x: jax.Array, n: jax.Array) -> jax.Array:
    """Laguerre polynomial L_n."""
    value = recurrence(x, degree(n), 1 - x, lambda x, k, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1))
    return jnp.where((x == 0) & (degree(n) >= 0), 1, value)


@template("legendre_polynomial")
def legendre_polynomial(x: jax.Array, n: jax.Array) -> jax.Array:
    """Legendre polynomial P_n; 1 in size at 1 and -1, where the recurrence would drift."""
    n, at_end = degree(n), jnp.abs(x) == 1
    steps = jnp.where(at_end & (n > 0), 1, n)
    value = recurrence(x, steps, x, lambda x, k, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1))
    return jnp.where(at_end & (n > 0) & (n % 2 == 0), 1, value)
