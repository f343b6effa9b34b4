"""Attention without the scores in memory: jax's Pallas kernel for TPUs ("splash attention").

Blocks of scores live in the chip's vector memory only; the softmax is accumulated over blocks of keys, and the backward
kernels compute each block again from the log of its row's sum (https://arxiv.org/abs/2205.14135). Blocks that the mask
hides altogether are skipped: half of them when causal.

A mask from memory (the buffer of a model, `tril(ones)`) is compared with a causal one first. If it is another, the
scores are computed for a block of queries at a time, in XLA's ops.

On other platforms the same is computed with the scores in memory, so that a program made for a TPU runs anywhere.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel import SplashAttentionKernel
from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask_info import MaskInfo

from lazytpu.lowering.templates.registry import template

LANES = 128
BLOCKS = (512, 384, 256, 128)
"Sizes of a block in queries and keys, best first: the largest that divides the length is taken."
HIDDEN_ROW = -1e38
"""A row's log-sum-exp is below this when all its keys are hidden: hidden scores count as -0.7 of the largest f32, and
those of a row that sees a key vanish beside it."""
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


def block(length: int) -> int:
    """The size of a block for a length, a multiple of 128."""
    return next(size for size in BLOCKS if length % size == 0)


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
    """The kernel for queries whose positions are known at run time only: it computes the mask of every block."""
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


def _differentiable(kernel: Any, q: Any, k: Any, v: Any, visible: Any) -> Any:
    """(output, what pulls its gradient back), for batches; `visible` [batch, S] says which keys are seen at all."""
    if visible is None:
        return jax.vjp(jax.vmap(kernel), q, k, v)
    ones = jnp.ones(q.shape[-2], jnp.int32)
    seen = visible.astype(jnp.int32)

    def one(q: Any, k: Any, v: Any, seen: Any) -> Any:
        return kernel(q, k, v, splash_attention.SegmentIds(ones, seen))

    return jax.vjp(lambda q, k, v: jax.vmap(one)(q, k, v, seen), q, k, v)


def _residuals(pull: Any, output: tuple[int, ...]) -> tuple[list[Any], Any, int, int]:
    """What the backward kernels keep: the leaves of `pull`, their tree, and the positions among them of the output (the
    last of its shape: query, key and value come first) and of the log-sum-exp."""
    leaves, tree = jax.tree.flatten(pull)
    of_output = max(i for i, leaf in enumerate(leaves) if leaf.shape == output)
    (of_sums,) = (i for i, leaf in enumerate(leaves) if leaf.shape == output[:3] and leaf.dtype == jnp.float32)
    return leaves, tree, of_output, of_sums


def _unless_stored(kernel: Any, blockwise: Any, stored: Any) -> Any:
    """`kernel()`, of a causal mask, unless `stored` [batch or 1, L, S] is there and another: then `blockwise()`."""
    if stored is None:
        return kernel(False)
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, stored.shape, dim) for dim in (1, 2))
    return jax.lax.cond(jnp.all(stored == (rows >= columns)), lambda: kernel(True), blockwise)


def by_blocks(q: Any, k: Any, v: Any, stored: Any, precision: str) -> tuple[Any, Any]:
    """`in_memory` for 128 queries at a time; in its derivative too each block is computed anew."""
    batch, heads, queries, width = q.shape

    @jax.checkpoint
    def one(block: Any) -> Any:
        rows, mask = block
        made = in_memory(rows, k, v, None, None, mask, causal=False, window=0, precision=precision)
        return made[0], made[1]

    split = q.reshape(batch, heads, -1, LANES, width).transpose(2, 0, 1, 3, 4)
    masks = stored.reshape(stored.shape[0], -1, LANES, stored.shape[2]).transpose(1, 0, 2, 3)
    output, sums = jax.lax.map(one, (split, masks))
    output = output.transpose(1, 2, 0, 3, 4).reshape(batch, heads, queries, -1)
    return output, sums.transpose(1, 2, 0, 3).reshape(batch, heads, queries)


def _either(call: Any, q: Any, k: Any, offset: Any, **params: Any) -> Any:
    """`call` with the kernel: without an offset, or where it is 0, the one that skips what is hidden."""
    if offset is None:
        return call(_kernel(q, k, **params))
    skipping = partial(call, _kernel(q, k, **params))
    return jax.lax.cond(offset == 0, skipping, lambda: call(_shifted_kernel(q, k, offset, **params)))


def forward_kernel(
    q: Any,
    k: Any,
    v: Any,
    visible: Any,
    offset: Any,
    stored: Any,
    *,
    causal: bool,
    window: int,
    precision: str,
    interpret: bool = False,
) -> tuple[Any, Any]:
    """(output, log-sum-exp [batch, heads, L])."""

    def call(kernel: Any) -> tuple[Any, Any]:
        output, pull = _differentiable(kernel, q, k, v, visible)
        leaves, _, _, of_sums = _residuals(pull, output.shape)
        return output, leaves[of_sums]

    def kernel(tested: bool) -> tuple[Any, Any]:
        return _either(call, q, k, offset, causal=causal or tested, window=window, interpret=interpret)

    with jax.default_matmul_precision(precision):
        output, sums = _unless_stored(kernel, lambda: by_blocks(q, k, v, stored, precision), stored)
    return _without_hidden_rows(output, sums, visible, offset), sums


def backward_kernel(
    grad: Any,
    output: Any,
    sums: Any,
    q: Any,
    k: Any,
    v: Any,
    visible: Any,
    offset: Any,
    stored: Any,
    *,
    causal: bool,
    window: int,
    precision: str,
    interpret: bool = False,
) -> tuple[Any, Any, Any]:
    """Gradients of q, k and v, from what the forward kernel gave."""
    grad = _without_hidden_rows(grad, sums, visible, offset)

    def call(kernel: Any) -> tuple[Any, Any, Any]:
        again, pull = _differentiable(kernel, q, k, v, visible)  # dead code: its residuals are replaced
        leaves, tree, of_output, of_sums = _residuals(pull, again.shape)
        leaves[of_output], leaves[of_sums] = output, sums
        return jax.tree.unflatten(tree, leaves)(grad)

    def kernel(tested: bool) -> tuple[Any, Any, Any]:
        return _either(call, q, k, offset, causal=causal or tested, window=window, interpret=interpret)

    def blockwise() -> tuple[Any, Any, Any]:
        return jax.vjp(lambda q, k, v: by_blocks(q, k, v, stored, precision)[0], q, k, v)[1](grad)

    with jax.default_matmul_precision(precision):
        return _unless_stored(kernel, blockwise, stored)


def _without_hidden_rows(x: Any, sums: Any, visible: Any, offset: Any) -> Any:
    """Zeros for queries that see no key."""
    if visible is None and offset is None:
        return x
    return jnp.where(sums[..., None] > HIDDEN_ROW, x, jnp.zeros_like(x))


def in_memory(
    q: Any, k: Any, v: Any, visible: Any, offset: Any, stored: Any, *, causal: bool, window: int, precision: str
) -> tuple[Any, Any]:
    """What `forward_kernel` gives, with the scores in memory."""
    batch, heads, queries, _ = q.shape
    grouped = q.reshape(batch, k.shape[1], heads // k.shape[1], queries, -1)
    product = partial(jnp.einsum, precision=precision, preferred_element_type=jnp.float32)
    scores = product("bhgqe,bhke->bhgqk", grouped, k)
    rows, columns = jnp.arange(queries)[:, None], jnp.arange(k.shape[2])[None]
    if offset is not None:
        rows = rows + offset
    seen = jnp.broadcast_to(_sees(causal, window)(rows, columns), scores.shape[-2:])
    if visible is not None:
        seen = seen & visible[:, None, None, None, :]
    if stored is not None:
        seen = seen & stored[:, None, None]
    scores = jnp.where(seen, scores, MASKED)
    sums = jax.nn.logsumexp(scores, -1)
    probabilities = jnp.exp(scores - sums[..., None]).astype(v.dtype)
    output = product("bhgqk,bhkv->bhgqv", probabilities, v).astype(v.dtype).reshape(*q.shape[:3], -1)
    sums = sums.reshape(q.shape[:3])
    return _without_hidden_rows(output, sums, visible if stored is None else stored, offset), sums


def in_memory_backward(
    grad: Any, output: Any, sums: Any, q: Any, k: Any, v: Any, visible: Any, offset: Any, stored: Any, **params: Any
) -> tuple[Any, Any, Any]:
    """What `backward_kernel` gives, with the scores in memory."""
    _, pull = jax.vjp(lambda q, k, v: in_memory(q, k, v, visible, offset, stored, **params)[0], q, k, v)
    return pull(grad)


def _by_platform(operands: tuple[Any, ...], kernel: Any, default: Any, *there: bool) -> Any:
    """`kernel` on a TPU and `default` elsewhere, of operands that end in visible, offset and stored, those that are
    there."""
    fixed = len(operands) - sum(there)

    def complete(function: Any, *given: Any) -> Any:
        rest = iter(given[fixed:])
        return function(*given[:fixed], *(next(rest) if each else None for each in there))

    return jax.lax.platform_dependent(*operands, tpu=partial(complete, kernel), default=partial(complete, default))


@template("flash_attention", x64=False)
def flash_attention(*operands: Any, masked: bool, shifted: bool, stored: bool, **params: Any) -> tuple[Any, Any]:
    """(output, log-sum-exp) of q, which comes scaled, k, v; with `masked` visible, with `shifted` offset, with `stored`
    a mask."""
    kernel, default = partial(forward_kernel, **params), partial(in_memory, **params)
    return _by_platform(operands, kernel, default, masked, shifted, stored)


@template("flash_attention_backward", x64=False)
def flash_attention_backward(
    *operands: Any, masked: bool, shifted: bool, stored: bool, **params: Any
) -> tuple[Any, Any, Any]:
    """Gradients of q, k and v from (grad, output, log-sum-exp, q, k, v), and the others as above."""
    kernel, default = partial(backward_kernel, **params), partial(in_memory_backward, **params)
    return _by_platform(operands, kernel, default, masked, shifted, stored)
