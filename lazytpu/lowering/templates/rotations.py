"""Singular values by rotations of columns (one-sided Jacobi), for a TPU.

JAX's own algorithm for TPUs, a polar decomposition by QDWH, crashes libtpu's compiler in float32 (seen with libtpu
0.0.42), and takes half a minute to compile in float64. This one is a loop of a few elementwise ops, is as accurate for
small singular values as for large ones, and compiles in a second for any size.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

SWEEPS = 40
"The most sweeps over all pairs of columns. Matrices of 4 to 512 columns took 5 to 12."


def svd(a: jax.Array, full: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(U, singular values in descending order, conjugate transpose of V), of matrices in the last two dimensions."""
    if a.shape[-2] < a.shape[-1]:
        u, values, vh = svd(_adjoint(a), full)
        return _adjoint(vh), values, _adjoint(u)
    m, n = a.shape[-2:]
    a, size = _scaled(a)
    q, r = jax.lax.linalg.qr(a, full_matrices=full)
    # The rows of R are rotated, not its columns: after QR, that converges faster.
    rotated, rotations = _orthogonal_rows(r[..., :n, :])
    values = jnp.linalg.norm(rotated, axis=-1)
    order = jnp.argsort(values, axis=-1, descending=True)
    values, rotated, rotations = (
        jnp.take_along_axis(values, order, -1),
        *(jnp.take_along_axis(x, order[..., None], -2) for x in (rotated, rotations)),
    )
    # rotations R = rotated, with rotated = diag(values) Vᴴ. A second QR, of the adjoint of rotated, gives rows of
    # length 0 a direction: its R is diagonal, with the values times a sign.
    v, diagonal = jax.lax.linalg.qr(_adjoint(rotated), full_matrices=False)
    sign = _direction(jnp.diagonal(diagonal, axis1=-2, axis2=-1))
    v = v * sign[..., None, :]
    left = _adjoint(rotations)
    if m > n and full:
        left = jnp.concatenate([_product(q[..., :n], left), q[..., n:]], -1)
    else:
        left = _product(q, left)
    return left, values * size, _adjoint(v)


def svdvals(a: jax.Array) -> jax.Array:
    """Singular values in descending order."""
    if a.shape[-2] < a.shape[-1]:
        a = _adjoint(a)
    a, size = _scaled(a)
    rotated, _ = _orthogonal_rows(jax.lax.linalg.qr(a, full_matrices=False)[1])
    return jnp.sort(jnp.linalg.norm(rotated, axis=-1), axis=-1, descending=True) * size


def _adjoint(x: jax.Array) -> jax.Array:
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def _direction(x: jax.Array) -> jax.Array:
    """x / |x|, and 1 for 0."""
    size = jnp.abs(x)
    return jnp.where(size > 0, x / jnp.where(size > 0, size, 1).astype(x.dtype), jnp.ones_like(x))


def _scaled(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(a divided by its largest element, that element), so that squares neither overflow nor underflow."""
    size = jnp.max(jnp.abs(a), axis=(-2, -1))
    size = jnp.where(size == 0, 1, size)
    return a / size[..., None, None].astype(a.dtype), size[..., None]


def _orthogonal_rows(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(J a, J) with unitary J, of square matrices, such that the rows of J a are orthogonal."""
    batch, n = a.shape[:-2], a.shape[-1]
    eye = jnp.broadcast_to(jnp.eye(n, dtype=a.dtype), a.shape)
    rows = jnp.concatenate([a, eye], -1).reshape(-1, n, 2 * n)
    rows = jnp.pad(rows, ((0, 0), (0, n % 2), (0, 0)))  # a row of zeros, which no rotation changes
    half = rows.shape[1] // 2
    eps = jnp.asarray(jnp.finfo(a.dtype).eps)

    def sweep(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        upper, lower, _, done = state
        rounds = 2 * half - 1
        start = (upper, lower, jnp.zeros_like(eps))
        return *jax.lax.fori_loop(0, rounds, lambda _, s: _round(*s, width=n), start), done + 1

    def going(state: tuple[jax.Array, ...]) -> jax.Array:
        return (state[2] > n**0.5 * eps) & (state[3] < SWEEPS)

    start = (rows[:, :half], rows[:, half:], jnp.full_like(eps, jnp.inf), jnp.int32(0))
    upper, lower, *_ = jax.lax.while_loop(going, sweep, start)
    rows = jnp.concatenate([upper, lower], 1)[:, :n].reshape(*batch, n, 2 * n)
    return rows[..., :n], rows[..., n:]


def _round(upper: jax.Array, lower: jax.Array, worst: jax.Array, *, width: int) -> tuple[jax.Array, ...]:
    """Rotate row i of `upper` with row i of `lower`, for all i, and form the next pairs: after as many rounds as there
    are other rows, all pairs have been formed and all rows are back in place. `worst` is the largest cosine so far."""
    upper_norm, lower_norm = (jnp.sum(_squared(x[..., :width]), -1, keepdims=True) for x in (upper, lower))
    inner = jnp.sum(upper[..., :width] * jnp.conj(lower[..., :width]), -1, keepdims=True)
    size = jnp.abs(inner)
    lengths = jnp.sqrt(upper_norm) * jnp.sqrt(lower_norm)
    tiny = jnp.finfo(size.dtype).tiny
    not_orthogonal = size > jnp.maximum(jnp.finfo(size.dtype).eps * lengths, tiny)
    worst = jnp.maximum(worst, jnp.max(jnp.where(not_orthogonal, size / jnp.where(not_orthogonal, lengths, 1), 0)))
    zeta = (lower_norm - upper_norm) / (2 * jnp.where(not_orthogonal, size, 1))
    tangent = jnp.where(zeta < 0, -1, 1) / (jnp.abs(zeta) + jnp.sqrt(1 + zeta * zeta))
    cosine = 1 / jnp.sqrt(1 + tangent * tangent)
    sine = jnp.where(not_orthogonal, cosine * tangent, 0)
    cosine = jnp.where(not_orthogonal, cosine, 1).astype(upper.dtype)
    turned = sine.astype(upper.dtype) * _direction(inner)
    upper, lower = cosine * upper - turned * lower, jnp.conj(turned) * upper + cosine * lower
    if upper.shape[1] > 1:  # a round-robin tournament: the first row stays, the others rotate
        moved = jnp.concatenate([upper[:, :1], lower[:, :1], upper[:, 1:-1]], 1)
        upper, lower = moved, jnp.concatenate([lower[:, 1:], upper[:, -1:]], 1)
    return upper, lower, worst


def _squared(x: jax.Array) -> jax.Array:
    return x.real * x.real + x.imag * x.imag if jnp.iscomplexobj(x) else x * x
