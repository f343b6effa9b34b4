"""Attention without the scores in memory: jax's Pallas kernel for TPUs ("splash attention").

Blocks of scores live only in the chip's vector memory; the softmax is accumulated over blocks of keys, and the backward
kernels recompute each block from the log of its row's sum (https://arxiv.org/abs/2205.14135). Blocks that the mask
hides entirely are skipped: half of them when causal.

Lengths are padded to whole blocks, with keys that no query sees. The kernel does not support queries that see no key:
they are passed as seeing some keys, with gradient 0, and their results are replaced.

A stored mask (the buffer of a model, `tril(ones)`) is compared with a causal one at run time. If they differ, the
scores are computed by blocks of XLA ops (attention_blocks.py), as they always are on other platforms, so that a program
for a TPU runs anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel import SplashAttentionKernel
from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask_info import MaskInfo

from lazytpu.ir.attention_work import LANES, PASSES, UNSEEN, AttentionSize, block, padded
from lazytpu.lowering.templates import attention_blocks as blocks
from lazytpu.lowering.templates.attention_blocks import Extra, How, extra_of
from lazytpu.lowering.templates.kernel_estimates import estimated
from lazytpu.lowering.templates.registry import template

HIDDEN_ROW = -1e38
"""The log-sum-exp of a row is below this when all its keys are hidden: hidden scores are -0.7 times the largest f32,
and vanish beside the scores of any visible key."""
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


@lru_cache(maxsize=64)
def _mask(queries: int, keys: int, causal: bool, window: int) -> splash_attention.Mask:
    shape = (queries, keys)
    if window:
        return splash_attention.LocalMask(shape, (window - 1, 0 if causal else None), 0)
    return splash_attention.CausalMask(shape) if causal else splash_attention.FullMask(shape)


def _sizes(queries: int, keys: int) -> splash_attention.BlockSizes:
    of_query, of_key = block(queries), block(keys)
    return splash_attention.BlockSizes(
        block_q=of_query,
        block_kv=of_key,
        block_kv_compute=of_key,
        block_q_dkv=of_query,
        block_kv_dkv=of_key,
        block_kv_dkv_compute=of_key,
        block_q_dq=of_query,
        block_kv_dq=of_key,
    )


def _kernel(q: Any, k: Any, *, causal: bool, window: int, interpret: bool) -> Any:
    """The kernel for one batch: (q [heads, L, E], k [kv heads, S, E], v [kv heads, S, V], segments) -> output."""
    queries, keys = q.shape[-2], k.shape[-2]
    mask = splash_attention.MultiHeadMask([_mask(queries, keys, causal, window)] * q.shape[-3])
    make = partial(splash_attention.make_splash_mha, mask, head_shards=1, q_seq_shards=1)
    return make(block_sizes=_sizes(queries, keys), interpret=interpret, mask_value=MASKED)


def _shifted_kernel(q: Any, k: Any, offset: Any, *, causal: bool, window: int, interpret: bool) -> Any:
    """The kernel for queries whose positions are known only at run time: it computes the mask of every block."""
    queries, keys = q.shape[-2], k.shape[-2]
    info = MaskInfo(None, None, None, None, jnp.arange(queries, dtype=jnp.int32) + offset)
    return SplashAttentionKernel(
        info,
        info,
        info,
        block_sizes=_sizes(queries, keys),
        is_mqa=False,
        save_residuals=False,
        mask_value=MASKED,
        attn_logits_soft_cap=None,
        residual_checkpoint_name=None,
        mask_function=_sees(causal, window),
        interpret=interpret,
    )


@lru_cache(maxsize=64)
def _sees(causal: bool, window: int) -> Any:
    def sees(query: Any, key: Any) -> Any:
        seen = query >= key if causal else key >= 0
        return seen & (query - window < key) if window else seen

    return sees


def _differentiable(kernel: Any, q: Any, k: Any, v: Any, segments: Any) -> Any:
    """(output, its pullback) of a batch; `segments` are the ids, [batch or 1, L] and [batch or 1, S], of queries and of
    the keys that they see."""
    if segments is None:
        return jax.vjp(jax.vmap(kernel), q, k, v)
    by_batch = tuple(0 if len(ids) > 1 else None for ids in segments)
    ids = tuple(each if len(each) > 1 else each[0] for each in segments)

    def one(q: Any, k: Any, v: Any, of_query: Any, of_key: Any) -> Any:
        return kernel(q, k, v, splash_attention.SegmentIds(of_query, of_key))

    return jax.vjp(lambda q, k, v: jax.vmap(one, (0, 0, 0, *by_batch))(q, k, v, *ids), q, k, v)


def _residuals(pull: Any, output: tuple[int, ...]) -> tuple[list[Any], Any, int, int]:
    """The residuals of the backward kernels: the leaves of `pull`, their tree, and the indices among them of the output
    (the last of its shape: query, key and value come first) and of the log-sum-exp."""
    leaves, tree = jax.tree.flatten(pull)
    of_output = max(i for i, leaf in enumerate(leaves) if leaf.shape == output)
    (of_sums,) = (i for i, leaf in enumerate(leaves) if leaf.shape == output[:3] and leaf.dtype == jnp.float32)
    return leaves, tree, of_output, of_sums


def _unless_stored(kernel: Any, blockwise: Any, stored: Any) -> Any:
    """`kernel()`, unless there is a mask `stored` [batch or 1, 1, L, S] and it is not causal: then `blockwise()`."""
    if stored is None:
        return kernel(False)
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, stored.shape, dim) for dim in (2, 3))
    return jax.lax.cond(jnp.all(stored == (rows >= columns)), lambda: kernel(True), blockwise)


def _padded(x: Any, dim: int, value: int = 0) -> Any:
    """x, padded along `dim` to a multiple of `LANES`."""
    missing = padded(x.shape[dim]) - x.shape[dim]
    widths = [(0, missing if i == dim else 0) for i in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value) if missing else x


@dataclass(frozen=True)
class _Call:
    """An attention prepared for the kernels: operands of padded lengths, and the segments of queries and keys."""

    q: Any
    k: Any
    v: Any
    segments: Any  # [batch or 1, padded L], [batch or 1, padded S]
    stored: Any  # [batch or 1, 1, L, S]
    offset: Any
    how: How
    sees_all: bool
    "Whether every query is known to see a key."
    interpret: bool

    @staticmethod
    def of(q: Any, k: Any, v: Any, extra: Extra, how: How, interpret: bool) -> _Call:
        queries, keys, bias, offset = q.shape[2], k.shape[2], extra.bias, extra.offset
        stored = bias if bias is not None and bias.shape[2] > 1 else None
        visible = None if bias is None or stored is not None else jnp.broadcast_to(bias[:, 0, 0], (len(bias), keys))
        runs_over = how.window > 0 and queries - how.window >= keys
        sees_all = visible is None and extra.segments is None and offset is None and not runs_over
        causal = (how.causal or stored is not None) and offset is None and queries <= keys
        segments = extra.segments
        if segments is None and (visible is not None or (keys % LANES and not causal)):  # else no query sees padding
            segments = jnp.zeros((1, queries), jnp.int32), jnp.zeros((1, keys), jnp.int32)
        if segments is not None:
            of_query, of_key = (
                jnp.broadcast_to(x, (len(x), n)) for x, n in zip(segments, (queries, keys), strict=True)
            )
            if visible is not None:
                of_key = jnp.where(visible, of_key, UNSEEN)
            segments = _padded(of_query, 1), _padded(of_key, 1, UNSEEN)
        q, k, v = (_padded(x, 2) for x in (q, k, v))
        return _Call(q, k, v, segments, stored, offset, how, sees_all, interpret)

    def run(self, call: Any, blockwise: Any) -> Any:
        """`call` with a kernel for this attention, or `blockwise` where a stored mask requires it."""

        with jax.default_matmul_precision(self.precision):
            return _unless_stored(partial(self._either, call), blockwise, self.stored)

    @property
    def precision(self) -> str:
        """The precision of the products. Mosaic rejects any but the default for 16-bit operands."""
        return "default" if self.q.dtype.itemsize == 2 else self.how.precision

    def _either(self, call: Any, tested: bool) -> Any:
        """Apply `call` to a kernel: the one that skips hidden blocks if there is no offset, or if it is 0 at run
        time."""
        causal, window = self.how.causal or tested, self.how.window
        params = {"causal": causal, "window": window, "interpret": self.interpret}
        skipping = self._size(causal, window)

        def of_known() -> Any:
            return estimated(lambda: call(_kernel(self.q, self.k, **params)), skipping, PASSES[self.precision])

        def of_shifted() -> Any:
            shifted, all_blocks = partial(_shifted_kernel, self.q, self.k, self.offset), self._size(False, 0)
            return estimated(lambda: call(shifted(**params)), all_blocks, PASSES[self.precision])

        return of_known() if self.offset is None else jax.lax.cond(self.offset == 0, of_known, of_shifted)

    def _size(self, causal: bool, window: int) -> AttentionSize:
        (batch, heads, queries, width), (_, key_heads, keys, _) = self.q.shape, self.k.shape
        widths, size = (width, self.v.shape[3]), self.q.dtype.itemsize
        return AttentionSize(batch, heads, key_heads, queries, keys, *widths, size, causal, window)


def forward_kernel(q: Any, k: Any, v: Any, extra: Extra, how: How, *, interpret: bool = False) -> tuple[Any, Any]:
    """(output, log-sum-exp [batch, heads, L])."""
    of, length = _Call.of(q, k, v, extra, how, interpret), q.shape[2]

    def call(kernel: Any) -> tuple[Any, Any]:
        output, pull = _differentiable(kernel, of.q, of.k, of.v, of.segments)
        leaves, _, _, of_sums = _residuals(pull, output.shape)
        return output[:, :, :length], leaves[of_sums][:, :, :length]

    output, sums = of.run(call, lambda: in_blocks(q, k, v, extra, how))
    if of.sees_all:
        return output, sums
    if how.hidden == "mean":
        instead = jnp.repeat(_mean(v), q.shape[1] // v.shape[1], 1).astype(output.dtype)
    else:
        instead = jnp.nan if how.hidden == "nan" else 0
    return jnp.where(_sees_none(sums), instead, output), sums


def _sees_none(sums: Any) -> Any:
    """Which queries see no key, [batch, heads, L, 1], from their log-sum-exp."""
    return jnp.logical_not(sums > HIDDEN_ROW)[..., None]


def _mean(x: Any) -> Any:
    return x.astype(jnp.float32).mean(2, keepdims=True)


def backward_kernel(
    grad: Any, output: Any, sums: Any, q: Any, k: Any, v: Any, extra: Extra, how: How, *, interpret: bool = False
) -> tuple[Any, ...]:
    """Gradients of q, k and v, from the results of the forward kernel."""
    of, (queries, keys) = _Call.of(q, k, v, extra, how, interpret), (q.shape[2], k.shape[2])
    none = None if of.sees_all else _sees_none(sums)
    seen, row_sums = grad, _padded(sums, 2)
    if none is not None:
        seen, output = (jnp.where(none, 0, x) for x in (grad, output))
        row_sums = _padded(jnp.where(none[..., 0], 0, sums), 2)

    def call(kernel: Any) -> tuple[Any, ...]:
        again, pull = _differentiable(kernel, of.q, of.k, of.v, of.segments)  # dead code, since residuals are replaced
        leaves, tree, of_output, of_sums = _residuals(pull, again.shape)
        leaves[of_output], leaves[of_sums] = _padded(output, 2), row_sums
        pulled = jax.tree.unflatten(tree, leaves)(_padded(seen, 2))
        return tuple(x[:, :, :length] for x, length in zip(pulled, (queries, keys, keys), strict=True))

    gradients = of.run(call, lambda: blocks.backward(grad, q, k, v, extra, how))
    return gradients if none is None else _with_hidden(gradients, none, grad, q, k, v, how)


def _with_hidden(gradients: Any, none: Any, grad: Any, q: Any, k: Any, v: Any, how: How) -> tuple[Any, ...]:
    """Adds the gradients from queries that see no key. Where these give the mean of the values, their probabilities are
    1/S, and with `added` the gradients of their scores are (grad·value - grad·mean)/S."""
    grad_query, grad_key, grad_value = gradients
    by_key_head = (*k.shape[:2], -1)
    if how.hidden == "nan":
        any_hidden = jnp.any(none.reshape(*by_key_head, 1), 2, keepdims=True)
        grad_value = jnp.where(any_hidden, jnp.nan, grad_value)
        if how.added:
            grad_query, grad_key = jnp.where(none, jnp.nan, grad_query), jnp.where(any_hidden, jnp.nan, grad_key)
    if how.hidden == "mean":
        product = partial(jnp.einsum, precision="highest")
        back = jnp.where(none, grad, 0).astype(jnp.float32).reshape(*by_key_head, grad.shape[3])
        grad_value = (grad_value + back.sum(2, keepdims=True) / k.shape[2]).astype(v.dtype)
        if how.added:
            wide = [x.astype(jnp.float32) for x in (q.reshape(*by_key_head, q.shape[3]), k, v - _mean(v))]
            covariance = product("bgsv,bgse->bgve", wide[2], wide[1]) / k.shape[2]
            grad_query = (grad_query + product("bgqv,bgve->bgqe", back, covariance).reshape(q.shape)).astype(q.dtype)
            covariance = product("bgqv,bgqe->bgve", back, wide[0]) / k.shape[2]
            grad_key = (grad_key + product("bgsv,bgve->bgse", wide[2], covariance)).astype(k.dtype)
    return grad_query, grad_key, grad_value


def in_blocks(q: Any, k: Any, v: Any, extra: Extra, how: How) -> tuple[Any, Any]:
    """The results of `forward_kernel`, by blocks. The log-sum-exp is zeros: `in_blocks_backward` does not use it."""
    return blocks.forward(q, k, v, extra, how), jnp.zeros(q.shape[:3], jnp.float32)


def in_blocks_backward(grad: Any, output: Any, sums: Any, *operands: Any) -> tuple[Any, ...]:
    """The results of `backward_kernel`, by blocks."""
    return blocks.backward(grad, *operands)


def _by_platform(operands: tuple[Any, ...], fixed: int, kernel: Any, default: Any, extra: str, how: Any) -> Any:
    """Call `kernel` on a TPU and `default` elsewhere; `extra` names the operands after the first `fixed`."""

    def complete(function: Any, *arrays: Any) -> Any:
        return function(*arrays[:fixed], extra_of(extra, arrays[fixed:]), How(**how))

    return jax.lax.platform_dependent(*operands, tpu=partial(complete, kernel), default=partial(complete, default))


@template("flash_attention", x64=False)
def flash_attention(*operands: Any, extra: str, **how: Any) -> tuple[Any, Any]:
    """(output, log-sum-exp) of scaled q, k, v and the operands that `extra` names: a mask as bias, [batch or 1, 1, L or
    1, S], an offset, and segments."""
    return _by_platform(operands, 3, forward_kernel, in_blocks, extra, how)


@template("flash_attention_backward", x64=False)
def flash_attention_backward(*operands: Any, extra: str, **how: Any) -> tuple[Any, ...]:
    """Gradients of q, k and v from (grad, output, log-sum-exp, q, k, v), and the operands that `extra` names."""
    return _by_platform(operands, 6, backward_kernel, in_blocks_backward, extra, how)
