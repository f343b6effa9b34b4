"""Sparse gradients of embedding bags. For `nn.Embedding`, torch itself builds the gradient from indices and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lazytpu.frontend.recording.kernels import kernel
from lazytpu.frontend.sparse.parts import Kernels

aten = torch.ops.aten


def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Any:
    """The kernel of aten::_embedding_bag_backward."""
    counts = (num_weights, scale_grad_by_freq, mode)
    if not sparse:
        saved = (offset2bag, bag_size, maximum_indices)
        call = kernel(aten._embedding_bag_backward.default).call
        return call(grad, indices, offsets, *saved, *counts, False, per_sample_weights, padding_idx)
    if offset2bag.shape != indices.shape:  # the forward pass dropped some elements
        ends = offsets[: grad.shape[0]].contiguous()
        offset2bag = (
            torch.searchsorted(
                ends, torch.arange(indices.shape[0], dtype=offsets.dtype, device=indices.device), right=True
            )
            - 1
        )
    backward = aten._embedding_bag_sparse_backward.default
    return backward(grad, indices, offsets, offset2bag, bag_size, *counts, per_sample_weights, padding_idx)


OF_DENSE: Kernels = {"_embedding_bag_backward": embedding_bag_backward}
