"""Attention of DTensors, by the op for which torch has sharding rules: `_scaled_dot_product_efficient_attention`.

Besides the output it returns the logsumexp of each query. By these,
`torch.distributed.tensor.experimental.context_parallel` merges the outputs over the keys of different ranks. The op is
composed of products and a softmax, in float32: a rank holds the scores of its queries with one rank's keys.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

_efficient = torch.ops.aten._scaled_dot_product_efficient_attention.default


def is_sharded(query: torch.Tensor) -> bool:
    """Return whether it is a DTensor. (For DTensors, torch's own function decomposes calls that this op does not
    support.)"""
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(query, tensors.DTensor)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """Return the attention of DTensors [batch, heads, length, width] with compatible shapes."""
    return _efficient(query, key, value, None, True, 0.0, is_causal, scale=scale)[0]


def efficient_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """The kernel of aten::_scaled_dot_product_efficient_attention. Returns (output, logsumexp [batch, heads, queries]
    in float32, and two numbers that dropout would need)."""
    _check(attn_bias, dropout_p)
    scores = _scores(query, key, is_causal, scale)
    logarithms = scores.logsumexp(-1)
    output = (scores - logarithms[..., None]).exp() @ value.float()
    number = torch.zeros((), dtype=torch.int64, device=query.device)
    return output.to(query.dtype), logarithms if compute_log_sumexp else logarithms[..., :0], number, number.clone()


def efficient_attention_backward(
    grad_out_: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """The kernel of aten::_scaled_dot_product_efficient_attention_backward. Returns the gradients of (query, key,
    value), and None for the bias.

    `out` and `logsumexp` refer to all keys; `key` and `value` may be a subset.
    """
    _check(attn_bias, dropout_p)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    grad = grad_out_.float()
    shares = (_scores(query, key, is_causal, scale) - logsumexp[..., None]).exp()
    of_value = shares.mT @ grad
    of_scores = shares * (grad @ value.float().mT - (grad * out.float()).sum(-1, keepdim=True)) * factor
    of_query, of_key = of_scores @ key.float(), of_scores.mT @ query.float()
    return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype), None


def _check(bias: torch.Tensor | None, dropout: float) -> None:
    if bias is not None or dropout:
        raise NotImplementedError(
            "_scaled_dot_product_efficient_attention on tpu has no attn_bias and no dropout: call "
            "torch.nn.functional.scaled_dot_product_attention, which takes the op that has both"
        )


def _scores(query: torch.Tensor, key: torch.Tensor, is_causal: bool, scale: float | None) -> torch.Tensor:
    """Return the scores [batch, heads, queries, keys] in float32; -inf where a key comes after its query."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query.float() * factor) @ key.float().mT
    if not is_causal:
        return scores
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return scores.masked_fill(~seen, -torch.inf)


KERNELS: dict[str, Any] = {
    "_scaled_dot_product_efficient_attention": efficient_attention,
    "_scaled_dot_product_efficient_attention_backward": efficient_attention_backward,
}
