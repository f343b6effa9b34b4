"""Attention written out as products and a softmax, which gives each query's logsumexp beside the output.

`scaled_dot_product_attention` records one op instead (attention.py). These serve callers of torch's op for the CPU,
`_scaled_dot_product_flash_attention_for_cpu`, and DTensors (attention_of_shards.py).
"""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.inference.indexing import scalar_type

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_NAME = "scaled_dot_product_attention_flash_attention"
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def wide(x: torch.Tensor) -> torch.Tensor:
    """In the dtype in which attention accumulates."""
    return x.to(_WIDE.get(x.dtype, x.dtype))


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, logsumexp) of [batch, heads, length, width], both in the wide dtype. A query that sees no key has 0 for
    both, as on the CPU."""
    scores = _scores(query, key, bias, is_causal, scale)
    logsumexp = scores.logsumexp(-1)
    logsumexp = logsumexp.masked_fill(logsumexp == -torch.inf, 0)
    return (scores - logsumexp[..., None]).exp() @ wide(value), logsumexp


def gradients(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of (query, key, value). `out` and `logsumexp` are of all keys; `key` may hold a part of them."""
    grad, factor = wide(grad), query.shape[-1] ** -0.5 if scale is None else scale
    shares = (_scores(query, key, bias, is_causal, scale) - logsumexp[..., None]).exp()
    of_scores = shares * (grad @ wide(value).mT - (grad * wide(out)).sum(-1, keepdim=True)) * factor
    of_query, of_key, of_value = of_scores @ wide(key), of_scores.mT @ wide(query), shares.mT @ grad
    return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype)


def _scores(
    query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """[batch, heads, queries, keys] in the wide dtype; -inf where a key comes after its query."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (wide(query) * factor) @ wide(key).mT
    if bias is not None:
        scores = scores + bias
    if not is_causal:
        return scores
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return scores.masked_fill(~seen, -torch.inf)


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::_scaled_dot_product_flash_attention_for_cpu: (output, logsumexp [batch, heads, queries]), laid out as the
    CPU's. Queries may have more heads than keys."""
    _check(query, key, value, dropout_p, attn_mask)
    groups = query.shape[1] // max(key.shape[1], 1)
    output, logsumexp = attend(query, _repeated(key, groups), _repeated(value, groups), attn_mask, is_causal, scale)
    placed = torch.empty_like(query).copy_(output)
    return placed, logsumexp.transpose(1, 2).contiguous().transpose(1, 2)


def flash_attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """aten::_scaled_dot_product_flash_attention_for_cpu_backward, laid out [batch, length, heads, width]."""
    _check(query, key, value, dropout_p, attn_mask)
    groups = query.shape[1] // max(key.shape[1], 1)
    keys, values = _repeated(key, groups), _repeated(value, groups)
    grads = gradients(grad_out, query, keys, values, attn_mask, out, logsumexp, is_causal, scale)
    grads = grads[0], *[x if groups == 1 else x.unflatten(1, (-1, groups)).sum(2) for x in grads[1:]]
    return tuple([x.transpose(1, 2).contiguous().transpose(1, 2) for x in grads])


def _repeated(x: torch.Tensor, groups: int) -> torch.Tensor:
    return x if groups == 1 else x.repeat_interleave(groups, 1)


def _check(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, mask: torch.Tensor | None
) -> None:
    """Raise the CPU's errors, and ours where the CPU would read beyond the keys."""
    if query.dtype not in _DTYPES:
        raise RuntimeError(
            f"{_NAME}: Expected data type in FP32, FP64, BF16, FP16, but got {scalar_type(query.dtype)} instead."
        )
    if not query.dim() == key.dim() == value.dim() == 4:
        raise RuntimeError(f"{_NAME}: Accept only 4 dims inputs shape of {{B, H, T, K}}")
    if dropout:
        raise RuntimeError(f"{_NAME}: Currently do not support dropout > 0")
    if not query.shape[3] == key.shape[3] == value.shape[3]:
        raise RuntimeError(f"{_NAME}: Q/K/V should have the same head size")
    if mask is not None and mask.dtype != query.dtype:
        raise RuntimeError(f"{_NAME}: Attention mask is the same data type as query")
    if mask is not None and mask.dim() not in (2, 4):
        raise RuntimeError(f"{_NAME}: Attention mask dim in {{2, 4}}")
    for x in (key, value):
        if x.dtype != query.dtype:
            expected, got = scalar_type(query.dtype), scalar_type(x.dtype)
            raise RuntimeError(f"expected scalar type {expected} but found {got}")
    if key.shape != value.shape or key.shape[0] != query.shape[0] or query.shape[1] % max(key.shape[1], 1):
        raise RuntimeError(
            f"{_NAME}: key and value should have the same shape, of the query's batch and heads that divide its own, "
            f"got query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)}"
        )


KERNELS: dict[str, Any] = {
    "_scaled_dot_product_flash_attention_for_cpu": flash_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": flash_attention_backward,
}
