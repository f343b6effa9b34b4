"""Attention of DTensors, by the op that torch has rules for: `_scaled_dot_product_efficient_attention`.

It gives the logarithm of each query's sum beside the output, by which `torch.distributed.tensor.experimental.
context_parallel` merges what a query makes of keys that lie on other ranks, a part after the other. The op is written
out (logsumexp_attention.py): a rank holds the scores of its queries with one rank's keys.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from lazytpu.frontend.ops import logsumexp_attention

_efficient = torch.ops.aten._scaled_dot_product_efficient_attention.default


def is_sharded(query: torch.Tensor) -> bool:
    """Whether it is a DTensor. (Of those, torch's own function writes out what this op does not do.)"""
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(query, tensors.DTensor)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """The attention of DTensors [batch, heads, length, width] that fit each other."""
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
    """aten::_scaled_dot_product_efficient_attention: (output, logarithms [batch, heads, queries] in float32 at least,
    and two numbers that dropout would need)."""
    _check(attn_bias, dropout_p)
    output, logarithms = logsumexp_attention.attend(query, key, value, None, is_causal, scale)
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
    """aten::_scaled_dot_product_efficient_attention_backward: gradients of (query, key, value), none of a bias."""
    _check(attn_bias, dropout_p)
    operands = grad_out_, query, key, value, None, out, logsumexp
    return *logsumexp_attention.gradients(*operands, is_causal, scale), None


def _check(bias: torch.Tensor | None, dropout: float) -> None:
    if bias is not None or dropout:
        raise NotImplementedError(
            "_scaled_dot_product_efficient_attention on tpu has no attn_bias and no dropout: call "
            "torch.nn.functional.scaled_dot_product_attention, which takes the op that has both"
        )


KERNELS: dict[str, Any] = {
    "_scaled_dot_product_efficient_attention": efficient_attention,
    "_scaled_dot_product_efficient_attention_backward": efficient_attention_backward,
}
