"""torch's flex_attention as the attention op, where its score_mod leaves the scores as they are.

torch's own implementation for devices without a kernel computes all scores. It still computes the logarithm of each
query's sum and the largest scores here, which are no part of a program unless something reads them; and all of calls
that change the scores. The mask is a value of the program, by torch's own vmap of mask_mod, so that the passes of a TPU
recognize masks by position and documents of packed sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from lazytpu.frontend import torch_private as private
from lazytpu.frontend.libraries.places import call_when_imported
from lazytpu.frontend.ops import attention

Dense = Callable[..., tuple[Any, ...]]


def _keeps_scores(score_mod: Any) -> bool:
    """Whether a score_mod, a function or its graph, returns the score."""
    if isinstance(score_mod, torch.fx.GraphModule):
        nodes = list(score_mod.graph.nodes)
        return nodes[-1].args[0] in (nodes[0], (nodes[0],), [nodes[0]])
    return score_mod is private.FLEX_IDENTITY.get()


def _mask(query: torch.Tensor, key: torch.Tensor, mask_mod: Any, captured: Sequence[Any]) -> torch.Tensor:
    """Return the mask of a mask_mod, [batch or 1, heads or 1, L, S]."""
    vectorized = private.FLEX_VMAP.get()(mask_mod, prefix=(), suffix=(None,) * len(captured))
    sizes = (*query.shape[:3], key.shape[2])
    with private.FLEX_INDEXING.get()():
        mask = vectorized(*(torch.arange(size, device=query.device) for size in sizes), *captured)
    mask = mask.bool()
    shared = [size if stride else 1 for size, stride in zip(mask.shape[:2], mask.stride()[:2], strict=True)]
    return mask[: shared[0], : shared[1]]


def _is_plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Any) -> bool:
    if not _keeps_scores(score_mod):
        return False
    return attention.choose(query, key, value, enable_gqa=True) == attention.OVERRIDEABLE


def _forward(dense: Dense) -> Dense:
    def call(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        score_mod: Any,
        block_mask: tuple[Any, ...],
        scale: float,
        kernel_options: Any,
        score_captured: tuple[Any, ...] = (),
        mask_captured: tuple[Any, ...] = (),
    ) -> tuple[Any, ...]:
        results = dense(query, key, value, score_mod, block_mask, scale, kernel_options, score_captured, mask_captured)
        if not _is_plain(query, key, value, score_mod):
            return results
        mask = _mask(query, key, block_mask[-1], mask_captured)
        output = F.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=True)
        return torch.empty_like(results[0]).copy_(output), *results[1:]

    return call


def _backward(dense: Dense) -> Dense:
    def call(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        logsumexp: torch.Tensor,
        grad_out: torch.Tensor | None,
        grad_logsumexp: torch.Tensor | None,
        fw_graph: Any,
        joint_graph: Any,
        block_mask: tuple[Any, ...],
        scale: float,
        kernel_options: Any,
        score_captured: tuple[Any, ...],
        mask_captured: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        read = grad_out is None or grad_logsumexp is not None or score_captured
        if read or not _is_plain(query, key, value, fw_graph):
            settings = (fw_graph, joint_graph, block_mask, scale, kernel_options, score_captured, mask_captured)
            return dense(query, key, value, out, logsumexp, grad_out, grad_logsumexp, *settings)
        mask = _mask(query, key, block_mask[-1], mask_captured)
        unread = (None, None, 0, 0, 0.0, False, None, None)
        wanted = [True, True, True, False]
        gradients = attention.attention_backward(
            grad_out, query, key, value, mask, wanted, out, None, *unread, scale=scale
        )
        laid_out = [torch.empty_like(x).copy_(grad) for x, grad in zip((query, key, value), gradients, strict=False)]
        return *laid_out, ()

    return call


def _implement(change: Callable[[Dense], Dense]) -> Callable[[Any], None]:
    def act(op: Any) -> None:
        op.py_impl(private.Key.PrivateUse1)(change(op.py_kernels[private.Key.CompositeExplicitAutograd]))

    return act


def _cast(op: Any) -> None:
    """Let flex_attention compute in autocast's dtype, as torch does for CUDA."""

    @op.py_impl(private.AUTOCAST_KEY)
    def cast(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *settings: Any) -> Any:
        dtype = torch.get_autocast_dtype("tpu")
        operands = [x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value)]
        with private.without_keys(private.AUTOCAST):
            return op(*operands, *settings)


def install() -> None:
    """Give torch's ops of flex_attention an implementation for the device, once they are imported."""
    call_when_imported(private.FLEX, _cast)
    call_when_imported(private.FLEX_BACKWARD, lambda op: op.fallthrough(private.AUTOCAST_KEY))
    call_when_imported(private.FLEX, _implement(_forward))
    call_when_imported(private.FLEX_BACKWARD, _implement(_backward))
