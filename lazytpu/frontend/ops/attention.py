"""Scaled dot-product attention as one record, forward and backward.

torch's function asks a device in C++ for an implementation. A device in Python cannot answer, so torch uses the "math"
path: products and a softmax. So the function itself is replaced. Supported calls go to torch's op for other devices'
attention, `_scaled_dot_product_fused_attention_overrideable`, which has a derivative; all others go to torch's own
function. That op has nine results, two of them integers, so our own ops, with only the used results, are recorded
instead. A GPT of 6 layers has 198 records per step instead of 336, with the same CPU time on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend

from lazytpu.by_release import APPLIES_MASK_AND_CAUSAL
from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.ops import attention_of_shards
from lazytpu.frontend.ops.direct import concerns_device_alone
from lazytpu.frontend.recording.kernels import kernel
from lazytpu.frontend.torch_private import attention_by_device, is_transformed

LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
_OPERANDS = "Tensor query, Tensor key, Tensor value, Tensor? bias"
LIBRARY.define(f"attention({_OPERANDS}, bool causal, float? scale) -> Tensor")
LIBRARY.define(
    f"attention_dropout({_OPERANDS}, bool causal, float? scale, float dropout) "
    "-> (Tensor output, Tensor seed, Tensor offset)"
)
LIBRARY.define(
    f"attention_backward(Tensor grad, {_OPERANDS}, Tensor? seed, Tensor? offset, bool causal, "
    "float? scale, float dropout, bool of_bias) -> (Tensor query, Tensor key, Tensor value, Tensor bias)"
)
OPS: Any = torch.ops.lazytpu

MATH, OVERRIDEABLE = SDPBackend.MATH.value, SDPBackend.OVERRIDEABLE.value

_function = torch.ops.aten.scaled_dot_product_attention.default
_fused = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The kernel of aten::scaled_dot_product_attention; a bool mask is passed to the op unchanged."""
    # torch's own function rejects this combination
    unsupported = attn_mask is not None and is_causal and not APPLIES_MASK_AND_CAUSAL
    if not unsupported and (attn_mask is None or _masks(attn_mask, query, key)):
        choice = choose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if choice == OVERRIDEABLE and type(query) is not torch.Tensor and attention_of_shards.is_sharded(query):
            if attn_mask is None and not dropout_p and query.shape[1] == key.shape[1]:
                return attention_of_shards.attend(query, key, value, is_causal, scale)
        elif choice == OVERRIDEABLE:
            if attn_mask is not None and is_causal:
                attn_mask, is_causal = _with_causal(attn_mask, query, key), False
            if concerns_device_alone(query, key, value, attn_mask):
                return attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]
            return _fused(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]
    return _function.decompose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _masks(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> bool:
    """Return whether the op accepts the mask: bools, or numbers of the query's dtype, that broadcast to the scores."""
    if mask.device != query.device or mask.dtype not in (torch.bool, query.dtype) or not 2 <= mask.dim() <= 4:
        return False
    scores = (*query.shape[:-1], key.shape[-2]) if key.dim() > 1 else ()
    return all(n in (1, m) for n, m in zip(reversed(mask.shape), reversed(scores), strict=False))


def _with_causal(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return `mask` combined with a causal mask, which hides the keys after each query."""
    seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=mask.device).tril()
    return mask & seen if mask.dtype is torch.bool else mask.masked_fill(~seen, -torch.inf)


def choose(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """Choose an implementation, as aten::_fused_sdp_choice: our op for [batch, heads, length, width], else the math
    path.

    The math path takes other ranks, broadcast batches and heads, and calls under a `sdpa_kernel` that excludes our op.
    It also takes forward mode and the transforms of torch.func, for which torch has no derivative of the op. (Like
    other fused attention, the op has no second derivatives; they need `sdpa_kernel(SDPBackend.MATH)`.)
    """
    shape, of_key, of_value = query.shape, key.shape, value.shape
    if len(shape) != 4 or len(of_key) != 4 or len(of_value) != 4 or 0 in shape or 0 in of_key or 0 in of_value:
        return MATH
    heads, shared = shape[1], of_key[1]
    fits = shape[0] == of_key[0] == of_value[0] and shape[3] == of_key[3] and of_key[1:3] == of_value[1:3]
    if not fits or (heads != shared and (not enable_gqa or heads % shared)):
        return MATH
    if not attention_by_device() or is_transformed():
        return MATH
    return OVERRIDEABLE if query.dtype == key.dtype == value.dtype and query.is_floating_point() else MATH


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Return (output, no logsumexp, None, None, L, S, seed, offset, None); seed and offset with dropout only."""
    if dropout_p > 0:
        call = kernel(OPS.attention_dropout.default).call
        output, seed, offset = call(query, key, value, attn_bias, is_causal, scale, dropout_p)
    else:
        output = kernel(OPS.attention.default).call(query, key, value, attn_bias, is_causal, scale)
        seed = offset = None
    return output, None, None, None, query.shape[2], key.shape[2], seed, offset, None


def attention_backward(
    grad_out: torch.Tensor | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    grad_input_mask: list[bool],
    out: torch.Tensor,
    logsumexp: torch.Tensor | None,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor | None,
    philox_offset: torch.Tensor | None,
    *,
    scale: float | None = None,
) -> Any:
    """Return the gradients of (query, key, value, attn_bias); None for all if the output has no gradient."""
    if grad_out is None:
        return None, None, None, None
    of_bias = attn_bias is not None and grad_input_mask[3]
    call = kernel(OPS.attention_backward.default).call
    settings = (is_causal, scale, dropout_p, of_bias)
    return call(grad_out, query, key, value, attn_bias, philox_seed, philox_offset, *settings)


def _output(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a meta result in the layout of the query, like the result of the CPU's kernel."""
    if query.shape[3] == value.shape[3]:
        return torch.empty_like(query)
    return query.new_empty((*query.shape[:3], value.shape[3]))


@override("lazytpu.attention.default")
def _attention(query: torch.Tensor, value: torch.Tensor, **unused: Any) -> torch.Tensor:
    return _output(query, value)


@override("lazytpu.attention_dropout.default")
def _attention_dropout(query: torch.Tensor, value: torch.Tensor, **unused: Any) -> tuple[torch.Tensor, ...]:
    number = query.new_empty((), dtype=torch.int64)
    return _output(query, value).contiguous(), number, number


@override("lazytpu.attention_backward.default")
def _attention_backward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, of_bias: bool, **unused: Any
) -> tuple[torch.Tensor | None, ...]:
    """Return meta gradients laid out as [batch, length, heads, width], like the CPU's."""
    grads = [x.new_empty([x.shape[0], x.shape[2], x.shape[1], x.shape[3]]).transpose(1, 2) for x in (query, key, value)]
    return *grads, torch.empty_like(bias) if of_bias and bias is not None else None


@override("aten._scaled_dot_product_fused_attention_overrideable.default")
def _fused_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, **unused: Any
) -> tuple[Any, ...]:
    """For fake tensors: torch's wrappers of compiled graphs expect a tensor where `attention` returns None."""
    output = _output(query, value)
    number = query.new_empty((), dtype=torch.int64)
    logsumexp = query.new_empty(query.shape[:3], dtype=torch.float32)
    output = output.contiguous() if dropout_p > 0 else output
    return output, logsumexp, None, None, query.shape[2], key.shape[2], number, number, None


@override("aten._scaled_dot_product_fused_attention_overrideable_backward.default")
def _fused_attention_backward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: Any, grad_input_mask: Any, **unused: Any
) -> tuple[Any, ...]:
    """For fake tensors."""
    return _attention_backward(query, key, value, attn_bias, attn_bias is not None and grad_input_mask[3])


KERNELS: dict[str, Any] = {
    "_fused_sdp_choice": choose,
    "_scaled_dot_product_fused_attention_overrideable": attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": attention_backward,
}

COMPOSITES: dict[str, Any] = {"scaled_dot_product_attention": scaled_dot_product_attention}
