"""Linear algebra on the last two dimensions, by XLA's own algorithms or LAPACK, as JAX chooses for the platform, and by
our own loops where the TPU compiler has no algorithm, or none that works."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates import rotations
from lazytpu.lowering.templates.registry import template


@template("cholesky")
def cholesky(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(L, info as i32) of Hermitian positive definite matrices; only the lower triangle is read. For a matrix that is
    not positive definite, info is the order of the first leading minor that is not positive, and L is LAPACK's partial
    result."""
    factor = jnp.tril(jax.lax.linalg.cholesky(a, symmetrize_input=False))
    failed = jnp.isnan(factor).any((-2, -1))
    done = (factor, jnp.zeros(a.shape[:-2], jnp.int32))
    return jax.lax.cond(failed.any(), lambda: _columns(a, failed, factor), lambda: done)


def _columns(a: jax.Array, failed: jax.Array, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The factorization column by column, for matrices that failed. It stops where a leading minor is not positive."""
    n = a.shape[-1]
    place = jnp.arange(n)

    def step(j: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        lower, info = state
        row = jnp.where(place < j, jnp.conj(lower[..., j, :]), 0)
        old = lower[..., :, j]
        column = old - jnp.einsum("...ik,...k->...i", lower, row, precision="highest")
        pivot = column[..., j].real[..., None]
        going = (info == 0)[..., None]
        root = jnp.sqrt(jnp.where(pivot > 0, pivot, 1))
        new = jnp.where(place == j, root, jnp.where(place > j, column / root, 0))
        stopped = jnp.where(place == j, pivot.astype(a.dtype), old)
        updated = jnp.where(going, jnp.where(pivot > 0, new.astype(a.dtype), stopped), old)
        info = jnp.where(going[..., 0] & ~(pivot[..., 0] > 0), j + 1, info).astype(jnp.int32)
        return lower.at[..., :, j].set(updated), info

    start = (jnp.tril(a), jnp.zeros(a.shape[:-2], jnp.int32))
    lower, info = jax.lax.fori_loop(0, n, step, start)
    return jnp.where(failed[..., None, None], lower, factor), jnp.where(failed, info, 0)


@template("triangular_solve")
def triangular_solve(
    a: jax.Array,
    b: jax.Array,
    *,
    left: bool = True,
    upper: bool = False,
    transpose: bool = False,
    conjugate: bool = False,
    unit_diagonal: bool = False,
) -> jax.Array:
    """x with op(a) @ x = b, or x @ op(a) = b unless `left`; only one triangle of a is read."""
    return jax.lax.linalg.triangular_solve(
        a,
        b,
        left_side=left,
        lower=not upper,
        transpose_a=transpose,
        conjugate_a=conjugate,
        unit_diagonal=unit_diagonal,
    )


@template("lu")
def lu(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(L and U in one matrix, pivots counted from 0 as i32, the permutation of rows as i32)."""
    if a.dtype == jnp.float64 and a.size:  # the TPU compiler has it only for 32 bits
        return jax.lax.platform_dependent(a, tpu=_eliminated, default=_lu)
    return _lu(a)


def _lu(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    factors, pivots, permutation = jax.lax.linalg.lu(a)
    return factors, pivots, permutation


def _eliminated(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """LU column by column, with partial pivoting, for all matrices of the batch at once."""
    *batch, m, n = a.shape
    row, column = jnp.arange(m, dtype=jnp.int32), jnp.arange(n, dtype=jnp.int32)

    def step(k: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        matrix, pivots, permutation = state
        chosen = jnp.argmax(jnp.where(row >= k, jnp.abs(matrix[..., k]), -1), -1, keepdims=True).astype(jnp.int32)
        exchange = jnp.where(row == k, chosen, jnp.where(row == chosen, k, row))
        matrix = jnp.take_along_axis(matrix, exchange[..., None], -2)
        permutation = jnp.take_along_axis(permutation, exchange, -1)
        pivots = jnp.where(jnp.arange(pivots.shape[-1]) == k, chosen, pivots)
        pivot, first = matrix[..., k, :], matrix[..., k]
        divisor = pivot[..., k, None]
        scaled = jnp.where((row > k) & (divisor != 0), first / jnp.where(divisor == 0, 1, divisor), first)
        below = (row > k)[:, None]
        matrix = matrix - jnp.where(below & (column > k), scaled[..., :, None] * pivot[..., None, :], 0)
        return jnp.where(below & (column == k), scaled[..., :, None], matrix), pivots, permutation

    pivots = jnp.zeros((*batch, min(m, n)), jnp.int32)
    start = (a, pivots, jnp.broadcast_to(row, (*batch, m)))
    return jax.lax.fori_loop(jnp.int32(0), jnp.int32(min(m, n)), step, start)


@template("qr")
def qr(a: jax.Array, *, full: bool = False) -> tuple[jax.Array, jax.Array]:
    """(Q, R); `full` makes Q square."""
    q, r = jax.lax.linalg.qr(a, full_matrices=full)
    return q, r


@template("svd")
def svd(a: jax.Array, *, full: bool = False) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(U, singular values in descending order, conjugate transpose of V)."""
    if not a.size:
        return _svd(a, full)
    return jax.lax.platform_dependent(a, tpu=partial(rotations.svd, full=full), default=partial(_svd, full=full))


def _svd(a: jax.Array, full: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    u, s, vh = jax.lax.linalg.svd(a, full_matrices=full, compute_uv=True)
    return u, s, vh


@template("svdvals")
def svdvals(a: jax.Array) -> jax.Array:
    """Singular values in descending order."""
    # `full_matrices` reserves a square of the longer side, although no vectors are computed.
    library = partial(jax.lax.linalg.svd, full_matrices=False, compute_uv=False)
    return jax.lax.platform_dependent(a, tpu=rotations.svdvals, default=library) if a.size else library(a)


@template("eigh")
def eigh(a: jax.Array, *, upper: bool = False) -> tuple[jax.Array, jax.Array]:
    """(ascending eigenvalues, eigenvectors as columns) of a Hermitian matrix; only one triangle is read."""
    vectors, values = jax.lax.linalg.eigh(a, lower=not upper, symmetrize_input=False)
    return values, vectors


@template("eig")
def eig(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(eigenvalues, right eigenvectors as columns), complex, of a square matrix. JAX has it only on the CPU."""
    values, vectors = jax.lax.linalg.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=True)
    return values, vectors


@template("householder_product")
def householder_product(a: jax.Array, tau: jax.Array) -> jax.Array:
    """The product of the elementary reflectors that `geqrf` leaves below the diagonal of a."""
    return jax.lax.linalg.householder_product(a, tau)


@template("geqrf")
def geqrf(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(R with the reflectors below its diagonal, tau)."""
    # numpy's raw mode is LAPACK's layout, column-major.
    reflectors, tau = jnp.linalg.qr(a, mode="raw")
    return jnp.swapaxes(reflectors, -1, -2), tau


@template("pivots_to_permutation")
def pivots_to_permutation(pivots: jax.Array, *, size: int) -> jax.Array:
    """The order of `size` rows after swapping row i with row pivots[i], for each i in turn."""
    return jax.lax.linalg.lu_pivots_to_permutation(pivots, size)
