"""The ops of `torch.nn.SyncBatchNorm`: batch norm in the stages between which its ranks exchange their statistics.

torch has these ops only for CUDA, and no decompositions. The formulas follow its kernels
(aten/src/ATen/native/cuda/Normalization.cuh): the statistics of each rank are combined by the method of Chan, Golub and
LeVeque.
"""

from __future__ import annotations

from typing import Any

import torch


def _statistics(input: torch.Tensor) -> torch.dtype:
    """Return the dtype of an input's statistics; float32 for 16-bit floats."""
    return torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype


def _dims(input: torch.Tensor) -> list[int]:
    """Return all dimensions except the channels, 1."""
    return [dim for dim in range(input.dim()) if dim != 1]


def _along(channels: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """Reshape [C] so that it broadcasts over the input."""
    return channels.reshape([-1 if dim == 1 else 1 for dim in range(input.dim())])


def stats(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel of aten::batch_norm_stats: the mean, and 1 / sqrt(variance + eps), of each channel."""
    variance, mean = torch.var_mean(input.to(_statistics(input)), _dims(input), correction=0)
    return mean, torch.rsqrt(variance + eps)


def gather_stats_with_counts(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel of aten::batch_norm_gather_stats_with_counts: `stats` over all ranks, from the ranks' statistics
    [ranks, C] and element counts [ranks].

    Writes the running statistics, which its schema does not declare.
    """
    weight = counts.to(mean.dtype).unsqueeze(1)
    total = weight.sum()
    combined = (mean * weight).sum(0) / total
    squares = (weight * (invstd.pow(-2) - eps + (mean - combined).square())).sum(0)
    if running_mean is not None:
        running_mean.copy_(running_mean * (1 - momentum) + combined * momentum)
    if running_var is not None:
        running_var.copy_(running_var * (1 - momentum) + squares / (total - 1) * momentum)
    return combined, torch.rsqrt(squares / total + eps)


def elemt(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """The kernel of aten::batch_norm_elemt: the normalized input."""
    scale = invstd if weight is None else invstd * weight
    result = (input - _along(mean, input)) * _along(scale, input)
    return (result if bias is None else result + _along(bias, input)).to(input.dtype)


def backward_reduce(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The kernel of aten::batch_norm_backward_reduce: the sums that the ranks add up, and the gradients of weight and
    bias.

    Unrequested gradients are recorded, but not computed, because nothing reads them.
    """
    grad, dims = grad_out.to(mean.dtype), _dims(input)
    sum_dy = grad.sum(dims)
    sum_dy_xmu = (grad * (input - _along(mean, input))).sum(dims)
    dtype = input.dtype if weight is None else weight.dtype
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(dtype), sum_dy.to(dtype)


def backward_elemt(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
    count: torch.Tensor,
) -> torch.Tensor:
    """The kernel of aten::batch_norm_backward_elemt: the gradient of the input, from the sums of all ranks."""
    total = count.sum().to(mean.dtype)
    along_x = _along(sum_dy_xmu / total * invstd.square(), input)
    scale = invstd if weight is None else invstd * weight
    grad = grad_out - _along(sum_dy / total, input) - (input - _along(mean, input)) * along_x
    return (grad * _along(scale, input)).to(input.dtype)


KERNELS: dict[str, Any] = {
    "batch_norm_stats": stats,
    "batch_norm_gather_stats_with_counts": gather_stats_with_counts,
    "batch_norm_elemt": elemt,
    "batch_norm_backward_reduce": backward_reduce,
    "batch_norm_backward_elemt": backward_elemt,
}
