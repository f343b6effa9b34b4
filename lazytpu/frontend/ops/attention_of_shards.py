"""Attention of DTensors, by the op for which torch has sharding rules: `_scaled_dot_product_efficient_attention`.

Besides the output it returns the logsumexp of each query. By these,
`torch.distributed.tensor.experimental.context_parallel` merges the outputs over the keys of different ranks. The op is
composed of products and a softmax (logsumexp_attention.py): a rank holds the scores of its queries with one rank's
keys.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from lazytpu.frontend.ops import logsumexp_attention

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
    in float32 at least, and two numbers that dropout would need)."""
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
    """The kernel of aten::_scaled_dot_product_efficient_attention_backward. Returns the gradients of (query, key,
    value), and None for the bias.

    `out` and `logsumexp` refer to all keys; `key` and `value` may be a subset.
    """
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
