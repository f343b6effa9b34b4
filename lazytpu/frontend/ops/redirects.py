"""Ops that PyTorch passes to a device under one name, and that are recorded under a better specified name."""

from __future__ import annotations

from typing import Any

import torch

import lazytpu.frontend.inference.convolution
import lazytpu.frontend.inference.recurrent  # noqa: F401 (their meta functions register)
from lazytpu.frontend.ops import attention, synchronized_norm, transformer
from lazytpu.frontend.recording.kernels import kernel

aten = torch.ops.aten


def convolution(*args: Any) -> torch.Tensor:
    """The kernel of aten::convolution_overrideable, the hook for devices without a convolution kernel in torch."""
    return kernel(aten.convolution.default).call(*args)


def convolution_backward(
    grad: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> Any:
    """The kernel of aten::convolution_backward_overrideable."""
    bias = [weight.shape[1] * groups if transposed else weight.shape[0]] if output_mask[2] else None
    settings = (stride, padding, dilation, transposed, output_padding, groups, output_mask)
    return kernel(aten.convolution_backward.default).call(grad, input, weight, bias, *settings)


def native_batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The kernel of aten::native_batch_norm, whose schema does not declare that it writes the running statistics; its
    `legit` form does."""
    if running_mean is None or running_var is None:
        return kernel(aten._native_batch_norm_legit.no_stats).call(input, weight, bias, training, momentum, eps)
    return kernel(aten._native_batch_norm_legit.default).call(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )


KERNELS: dict[str, Any] = {
    **attention.KERNELS,
    **transformer.KERNELS,
    **synchronized_norm.KERNELS,
    "convolution_overrideable": convolution,
    "convolution_backward_overrideable": convolution_backward,
    "native_batch_norm": native_batch_norm,
}
