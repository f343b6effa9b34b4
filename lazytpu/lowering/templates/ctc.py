"""Connectionist temporal classification: sums over all alignments of a target with a longer sequence of predictions, in
log space.

There are T predictions of C classes for each of N rows; targets of up to M labels become S = 2M + 1 states, with blanks
around every label. Names and equations are those of Graves et al., "Connectionist Temporal Classification" (ICML 2006);
the reference is ATen/native/LossCTC.cpp.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from lazytpu.lowering.templates.registry import template

NEVER = -jnp.inf


def _states(targets: jax.Array, blank: int) -> tuple[jax.Array, jax.Array]:
    """(labels of the states [N, S], whether a state can be reached from the one before its predecessor [N, S])."""
    rows, length = targets.shape
    labels = jnp.full((rows, 2 * length + 1), blank, jnp.int32).at[:, 1::2].set(targets.astype(jnp.int32))
    skips = jnp.concatenate([jnp.zeros((rows, min(2, labels.shape[1])), bool), labels[:, 2:] != labels[:, :-2]], 1)
    return labels, skips


def _emitted(log_probs: jax.Array, labels: jax.Array) -> jax.Array:
    """Log-probabilities of the states' labels [T, N, S]; labels out of range are clamped."""
    return jnp.take_along_axis(log_probs, labels[None], axis=2, mode="clip")


def _shifted(x: jax.Array, by: int) -> jax.Array:
    """`x` [N, S] shifted by `by` states, to higher ones if positive; `NEVER` is shifted in."""
    if abs(by) >= x.shape[1]:
        return jnp.full_like(x, NEVER)
    space = jnp.full((x.shape[0], abs(by)), NEVER, x.dtype)
    return jnp.concatenate([space, x[:, :-by]] if by > 0 else [x[:, -by:], space], 1)


def _log_sum(*terms: jax.Array) -> jax.Array:
    largest = terms[0]
    for term in terms[1:]:
        largest = jnp.maximum(largest, term)
    largest = jnp.where(jnp.isneginf(largest), 0, largest)
    total = jnp.exp(terms[0] - largest)
    for term in terms[1:]:
        total = total + jnp.exp(term - largest)
    return jnp.log(total) + largest


@template("ctc_loss")
def ctc_loss(
    log_probs: jax.Array, targets: jax.Array, input_lengths: jax.Array, target_lengths: jax.Array, *, blank: int
) -> tuple[jax.Array, jax.Array]:
    """(loss [N], log_alpha [N, T, S]) of log_probs [T, N, C], targets [N, M] and lengths [N]: equations (6) to (8)."""
    steps = log_probs.shape[0]
    labels, skips = _states(targets, blank)
    emitted = _emitted(log_probs, labels)
    state, last = jnp.arange(labels.shape[1]), 2 * target_lengths.astype(jnp.int32)
    inside = state <= last[:, None]
    start = jnp.where(inside & (state < 2), emitted[0], NEVER)

    def step(alpha: jax.Array, emits: jax.Array) -> tuple[jax.Array, jax.Array]:
        reached = _log_sum(alpha, _shifted(alpha, 1), jnp.where(skips, _shifted(alpha, 2), NEVER))
        alpha = jnp.where(inside, reached + emits, NEVER)
        return alpha, alpha

    _, later = lax.scan(step, start, emitted[1:])
    log_alpha = jnp.moveaxis(jnp.concatenate([start[None], later]), 0, 1)
    ends = jnp.take_along_axis(
        log_alpha, jnp.maximum(input_lengths.astype(jnp.int32) - 1, 0)[:, None, None], axis=1, mode="clip"
    )[:, 0]
    final = jnp.take_along_axis(ends, last[:, None], axis=1, mode="clip")[:, 0]
    before = jnp.take_along_axis(ends, jnp.maximum(last - 1, 0)[:, None], axis=1, mode="clip")[:, 0]
    loss = -jnp.where(last == 0, final, _log_sum(final, before))
    loss_of_empty = jnp.where(last == 0, 0, jnp.inf).astype(loss.dtype)
    loss = jnp.where(input_lengths == 0, loss_of_empty, loss)
    heard = jnp.arange(steps)[None, :, None] < input_lengths[:, None, None]
    return loss, jnp.where(heard, log_alpha, NEVER)


@template("ctc_loss_backward")
def ctc_loss_backward(
    grad: jax.Array,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    loss: jax.Array,
    log_alpha: jax.Array,
    *,
    blank: int,
    zero_infinity: bool,
) -> jax.Array:
    """The gradient of log_probs [T, N, C]: equations (10), (11) and (16), with posteriors in the sum of (16).

    The posterior of a state, its share of all alignments, is exp(log_alpha + log_beta - log_prob + loss). It is at most
    1, so posteriors can be added directly; torch adds in log space and divides by the probability afterwards.
    """
    steps, rows, _ = log_probs.shape
    labels, skips = _states(targets, blank)
    emitted = _emitted(log_probs, labels)
    state, last = jnp.arange(labels.shape[1]), 2 * target_lengths.astype(jnp.int32)[:, None]
    inside = state <= last
    # whether the state after next can be reached from a state
    skips = jnp.concatenate([skips[:, 2:], jnp.zeros((rows, min(2, labels.shape[1])), bool)], 1)
    ends = jnp.where((state == last) | (state == last - 1), 0, NEVER).astype(emitted.dtype)
    lengths = input_lengths.astype(jnp.int32)[:, None]

    def step(beta: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        emits, t = x
        reached = _log_sum(beta, _shifted(beta, -1), jnp.where(skips, _shifted(beta, -2), NEVER))
        beta = jnp.where(t == lengths - 1, ends, reached) + emits
        beta = jnp.where(inside & (t < lengths), beta, NEVER)
        return beta, beta

    nowhere = jnp.full_like(emitted[0], NEVER)
    _, log_beta = lax.scan(step, nowhere, (emitted, jnp.arange(steps, dtype=jnp.int32)), reverse=True)
    heard = (jnp.arange(steps)[:, None] < input_lengths)[:, :, None]
    posterior = jnp.exp(jnp.moveaxis(log_alpha, 0, 1) + log_beta - emitted + loss[:, None])
    posterior = jnp.where(inside & heard, posterior, 0)
    collected = jnp.zeros_like(log_probs).at[:, jnp.arange(rows)[:, None], labels].add(posterior, mode="drop")
    undefined = ~jnp.isfinite(loss)[:, None] | jnp.isneginf(log_probs)
    result = jnp.where(undefined, jnp.nan, jnp.exp(log_probs) - collected) * grad[:, None]
    if zero_infinity:
        heard = heard & ~jnp.isposinf(loss)[:, None]
    return jnp.where(heard, result, 0).astype(log_probs.dtype)
