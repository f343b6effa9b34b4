"""The fast path of torch's attention and encoder modules in evaluation. Its ops exist for CPU and CUDA only; here they
are recorded as their component ops (ATen/native/transformers/attention.cpp and transformer.cpp).

With a padding mask, the fast path of `nn.TransformerEncoder` uses nested tensors, which a device in Python cannot have.
Here the layers run on the padded tensors, and padding is set to zeros, as in the CPU's result.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _masked_softmax(self: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None) -> Tensor:
    """The kernel of aten::_masked_softmax for scores [batch, heads, L, S]; NaN in rows that are fully masked.

    True in the mask hides: [L, S] (type 0), [batch, S] (type 1), or the scores' own shape.
    """
    if mask.dtype is not torch.bool:
        raise RuntimeError("Mask should be a boolean tensor")
    if self.dim() == 4 and mask_type == 1 and mask.dim() == 2:
        mask = mask[:, None, None, :]
    return self.masked_fill(mask, float("-inf")).softmax(self.dim() - 1 if dim is None else dim)


def native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The kernel of aten::_native_multi_head_attention for [batch, length, embed_dim]: (output, weights if needed)."""
    if query is key and key is value:
        projected = list(F.linear(query, qkv_weight, qkv_bias).chunk(3, 2))
    else:
        projections = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        projected = [F.linear(x, w, b) for x, w, b in projections]
    q, k, v = (x.unflatten(2, (num_head, -1)).transpose(1, 2) for x in projected)
    weights = None
    if mask is None and not need_weights:
        attended = F.scaled_dot_product_attention(q, k, v)
    else:
        scores = (q * (embed_dim // num_head) ** -0.5) @ k.transpose(2, 3)
        weights = scores.softmax(3) if mask is None else _masked_softmax(scores, mask.bool(), 3, mask_type)
        attended = weights @ v
    output = F.linear(attended.transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if weights is None or not need_weights:
        return output, None
    return output, weights.mean(1) if average_attn_weights else weights


def transformer_encoder_layer_fwd(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """The kernel of aten::_transformer_encoder_layer_fwd."""

    def attend(x: Tensor) -> Tensor:
        settings = (embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type)
        return native_multi_head_attention(x, x, x, *settings)[0]

    def feed(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    first = functools.partial(
        F.layer_norm, normalized_shape=(embed_dim,), weight=norm_weight_1, bias=norm_bias_1, eps=eps
    )
    second = functools.partial(
        F.layer_norm, normalized_shape=(embed_dim,), weight=norm_weight_2, bias=norm_bias_2, eps=eps
    )
    if norm_first:
        x = src + attend(first(src))
        return x + feed(second(x))
    x = first(src + attend(src))
    return second(x + feed(x))


_padding = threading.local()  # .mask: the last one that was checked for padding at the ends of rows


def nested_tensor_from_mask_left_aligned(t: Tensor, mask: Tensor) -> bool:
    """The kernel of aten::_nested_tensor_from_mask_left_aligned, which an encoder calls before it switches to nested
    tensors."""
    _padding.mask = mask
    return False


_encode = nn.TransformerEncoder.forward


@functools.wraps(_encode)
def encode(
    self: nn.TransformerEncoder,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    """Run nn.TransformerEncoder.forward, with zeros for padding where the CPU takes its fast path."""
    if src.device.type != "tpu" or src_key_padding_mask is None:
        return _encode(self, src, mask, src_key_padding_mask, is_causal)
    _padding.mask = None
    output = _encode(self, src, mask, src_key_padding_mask, is_causal)
    visible, _padding.mask = _padding.mask, None
    if visible is None or mask is not None or torch.is_autocast_enabled():
        return output
    if torch.is_grad_enabled() and any(x.requires_grad for x in (src, *self.layers[0].parameters())):
        return output
    padding = output.new_zeros((1, 1, output.shape[2]))
    if self.norm is not None:
        padding = self.norm(padding)
    places = torch.arange(visible.shape[1], device=visible.device)
    aligned = (visible == (places < visible.sum(1, keepdim=True))).all()
    return torch.where((visible | ~aligned).unsqueeze(2), output, padding)


def install() -> None:
    """Let encoders on the device return the same results as on the CPU."""
    encoder: Any = nn.TransformerEncoder
    encoder.forward = encode


KERNELS: dict[str, Any] = {
    "_masked_softmax": _masked_softmax,
    "_native_multi_head_attention": native_multi_head_attention,
    "_nested_tensor_from_mask_left_aligned": nested_tensor_from_mask_left_aligned,
    "_transformer_encoder_layer_fwd": transformer_encoder_layer_fwd,
}
