"""The Bunch-Kaufman factorization of symmetric and Hermitian matrices, with LAPACK's pivots (sytf2, hetf2)."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates.registry import template

ALPHA = (1 + 17**0.5) / 8  # the threshold of Bunch and Kaufman, which bounds the growth of elements


def _size(x: jax.Array) -> jax.Array:
    """The size by which LAPACK compares pivots: |x|, or |re| + |im| for complex numbers."""
    return abs(x.real) + abs(x.imag) if jnp.iscomplexobj(x) else abs(x)


def _batched(function: object, *arrays: jax.Array, ranks: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """`function`, mapped over all leading dimensions; `ranks` are the numbers of trailing dimensions of each array."""
    batch = arrays[0].shape[: arrays[0].ndim - ranks[0]]
    flat = [a.reshape(-1, *a.shape[a.ndim - r :]) for a, r in zip(arrays, ranks, strict=True)]
    results = jax.vmap(function)(*flat)  # pyright: ignore[reportArgumentType]
    return tuple(r.reshape(*batch, *r.shape[1:]) for r in results)


@template("ldl_factor")
def ldl_factor(a: jax.Array, *, hermitian: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(D and the unit lower triangular L in one matrix, pivots counted from 1 and negative for blocks of two rows,
    info: 0 or the first column without a pivot, counted from 1). The lower triangle of a is read."""
    factors, pivots, info = _batched(partial(_factor, hermitian=hermitian), a, ranks=(2,))
    return factors, pivots, info


def _factor(a: jax.Array, *, hermitian: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    n = a.shape[0]
    place = jnp.arange(n, dtype=jnp.int32)
    conj = jnp.conj if hermitian else (lambda x: x)
    on = jnp.diagonal(a)
    below = jnp.tril(a, -1)
    symmetric = below + conj(below.T) + jnp.diag(on.real.astype(a.dtype) if hermitian else on)

    def step(k: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        second = state[-1]
        return jax.lax.cond(second, lambda s: (*s[:-1], False), partial(pivot, k), state)

    def pivot(k: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        trailing, factors, pivots, info, _ = state
        column = _size(trailing[:, k])
        diagonal, below_k = column[k], jnp.where(place > k, column, -1)
        low = jnp.argmax(below_k).astype(jnp.int32)
        most = jnp.maximum(below_k[low], 0)  # the largest below the diagonal
        row = jnp.max(jnp.where((place >= k) & (place != low), _size(trailing[low]), 0))
        nothing = (jnp.maximum(diagonal, most) == 0) | jnp.isnan(diagonal)
        ratio = most / jnp.where(row == 0, 1, row)
        stay = nothing | (diagonal >= ALPHA * most) | (diagonal >= ALPHA * most * ratio)
        is_single = stay | (_size(trailing[low, low]) >= ALPHA * row)
        exchanged = jnp.where(is_single, k, k + 1)  # is swapped with `chosen`
        chosen = jnp.where(stay, k, low)
        order = jnp.where(place == exchanged, chosen, jnp.where(place == chosen, exchanged, place))
        trailing = trailing[order][:, order]
        done = jax.lax.cond(is_single, partial(single, nothing), pair, k, trailing, factors)
        mark = jnp.where(is_single, chosen + 1, -(chosen + 1))
        pivots = jnp.where((place == k) | (~is_single & (place == k + 1)), mark, pivots)
        return *done, pivots, jnp.where((info == 0) & nothing, k + 1, info), ~is_single

    def single(
        nothing: jax.Array, k: jax.Array, trailing: jax.Array, factors: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        x, d = jnp.where(place > k, trailing[:, k], 0), trailing[k, k]
        scaled = jnp.where(nothing | (place <= k), x, x / jnp.where(nothing, 1, d))  # no -0.0 above the diagonal
        new = trailing - jnp.where(nothing, 0, jnp.outer(scaled, conj(x)))
        return new, factors.at[:, k].set(jnp.where(place == k, d, scaled))

    def pair(k: jax.Array, trailing: jax.Array, factors: jax.Array) -> tuple[jax.Array, jax.Array]:
        below = place > k + 1
        later = jnp.where(below[:, None], trailing[:, jnp.stack([k, k + 1])], 0)
        d = trailing[jnp.stack([k, k + 1])][:, jnp.stack([k, k + 1])]
        off = d[1, 0]  # the largest element of D; everything is relative to it, as in LAPACK
        first, last = d[1, 1] / off, d[0, 0] / conj(off)
        scale = 1 / (first * last - 1)
        first_column = jnp.where(below, scale * (first * later[:, 0] - later[:, 1]) / conj(off), 0)
        second_column = jnp.where(below, scale * (last * later[:, 1] - later[:, 0]) / off, 0)
        new = trailing - jnp.outer(first_column, conj(later[:, 0])) - jnp.outer(second_column, conj(later[:, 1]))
        left_column = jnp.where(place == k, d[0, 0], jnp.where(place == k + 1, d[1, 0], first_column))
        right_column = jnp.where(place == k + 1, d[1, 1], second_column)
        return new, factors.at[:, k].set(left_column).at[:, k + 1].set(right_column)

    start = (symmetric, jnp.zeros_like(a), jnp.zeros(n, jnp.int32), jnp.int32(0), jnp.bool_(False))
    state = jax.lax.fori_loop(jnp.int32(0), jnp.int32(n), step, start)
    return state[1], state[2], state[3]


@template("ldl_solve")
def ldl_solve(factors: jax.Array, pivots: jax.Array, b: jax.Array, *, hermitian: bool) -> jax.Array:
    """x with a x = b, from (factors, pivots) of a as `ldl_factor` returns them (sytrs, hetrs)."""
    return _batched(partial(_solve, hermitian=hermitian), factors, pivots, b, ranks=(2, 1, 2))[0]


def _solve(factors: jax.Array, pivots: jax.Array, b: jax.Array, *, hermitian: bool) -> tuple[jax.Array]:
    n = factors.shape[0]
    place = jnp.arange(n, dtype=jnp.int32)
    conj = jnp.conj if hermitian else (lambda x: x)
    chosen = jnp.abs(pivots).astype(jnp.int32) - 1
    # In a run of negative pivots, every other one begins a block of two rows.
    begins = jax.lax.scan(lambda inside, p: ((p < 0) & ~inside,) * 2, jnp.bool_(False), pivots)[1]
    ends = (pivots < 0) & ~begins
    below = place[:, None] > place + begins[None, :]
    lower = jnp.where(below, factors, 0)

    def exchange(x: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
        return x[jnp.where(place == i, j, jnp.where(place == j, i, place))]

    def forward(k: jax.Array, x: jax.Array) -> jax.Array:
        # The rows of a block are exchanged before its first column is used; only its second row moves.
        x = jnp.where(ends[k], x, exchange(x, k + begins[k], chosen[k]))
        return x - jnp.outer(lower[:, k], x[k])

    def backward(i: jax.Array, x: jax.Array) -> jax.Array:
        k = n - 1 - i
        x = x.at[k].add(-(conj(lower[:, k]) @ x))
        return jnp.where(ends[k], x, exchange(x, k + begins[k], chosen[k]))

    x = jax.lax.fori_loop(0, n, forward, b)
    on = jnp.diagonal(factors)
    off = jnp.append(jnp.diagonal(factors, -1), 0)  # D[k + 1, k]
    following, previous = (partial(jnp.roll, shift=shift, axis=0) for shift in (-1, 1))
    block_off = jnp.where(begins, off, 1)
    first, last = following(on) / block_off, on / conj(block_off)
    scale = 1 / jnp.where(begins, first * last - 1, 1)
    one = (scale * first / conj(block_off))[:, None] * x - (scale / block_off)[:, None] * following(x)
    two = (scale * last / block_off)[:, None] * following(x) - (scale / conj(block_off))[:, None] * x
    alone = x / jnp.where(begins | ends, 1, on)[:, None]
    x = jnp.where(begins[:, None], one, jnp.where(ends[:, None], previous(two), alone))
    return (jax.lax.fori_loop(0, n, backward, x),)
