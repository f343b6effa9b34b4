"""Ops that PyTorch passes to a device under one name, and that are recorded under a better specified name."""

from __future__ import annotations

from collections.abc import Callable
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


def slow_convolution(
    self: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: list[int],
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
) -> torch.Tensor:
    """The kernel of aten::_slow_conv2d_forward, to which torch.ops.aten.thnn_conv2d leads."""
    _check_kernel(weight, kernel_size)
    return kernel(aten.convolution.default).call(self, weight, bias, stride, padding, [1, 1], False, [0, 0], 1)


def slow_convolution_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    output_mask: list[bool],
) -> Any:
    """The kernel of aten::_slow_conv2d_backward."""
    _check_kernel(weight, kernel_size)
    settings = (stride, padding, [1, 1], False, [0, 0], 1, output_mask)
    return kernel(aten.convolution_backward.default).call(grad_output, self, weight, weight.shape[:1], *settings)


def slow_convolution_gradients(
    *args: Any, grad_input: torch.Tensor, grad_weight: torch.Tensor, grad_bias: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The kernel of aten::_slow_conv2d_backward.grad_input, which writes all three gradients."""
    targets = (grad_input, grad_weight, grad_bias)
    for target, gradient in zip(targets, slow_convolution_backward(*args, output_mask=[True, True, True]), strict=True):
        target.resize_(gradient.shape).copy_(gradient)
    return targets


def _check_kernel(weight: torch.Tensor, kernel_size: list[int]) -> None:
    if list(weight.shape[2:]) != list(kernel_size):
        raise RuntimeError(f"expected a weight of kernel size {list(kernel_size)}, but got {list(weight.shape)}")


def sampled_grid(*args: Any) -> torch.Tensor:
    """The kernel of aten::_grid_sampler_2d_cpu_fallback."""
    return kernel(aten.grid_sampler_2d.default).call(*args)


def sampled_grid_backward(*args: Any) -> Any:
    """The kernel of aten::_grid_sampler_2d_cpu_fallback_backward."""
    return kernel(aten.grid_sampler_2d_backward.default).call(*args, [True, True])


def scaled_by_tensor(name: str) -> Callable[..., Any]:
    """Return the kernel of an overload of _foreach_addcmul or _foreach_addcdiv with a tensor of numbers, which other
    devices require to be on the CPU."""
    packet = getattr(aten, name)

    def foreach(
        self: list[torch.Tensor], tensor1: list[torch.Tensor], tensor2: list[torch.Tensor], scalars: torch.Tensor
    ) -> Any:
        if scalars.device.type != "cpu":
            return kernel(packet.Tensor).call(self, tensor1, tensor2, scalars)
        if scalars.dim() != 1:
            raise RuntimeError(f"Expected packed scalar Tensor to be of dimension 1. Got {scalars.dim()} instead.")
        if len(scalars) != len(self):
            raise RuntimeError(
                f"Expected length of scalars to match input of length {len(self)} but got {len(scalars)} instead."
            )
        return packet.ScalarList(self, tensor1, tensor2, scalars.tolist())

    return foreach


KERNELS: dict[str, Any] = {
    **attention.KERNELS,
    **transformer.KERNELS,
    **synchronized_norm.KERNELS,
    "convolution_overrideable": convolution,
    "convolution_backward_overrideable": convolution_backward,
    "native_batch_norm": native_batch_norm,
    "_slow_conv2d_forward": slow_convolution,
    "_slow_conv2d_backward.output_mask": slow_convolution_backward,
    "_slow_conv2d_backward.grad_input": slow_convolution_gradients,
    "_grid_sampler_2d_cpu_fallback": sampled_grid,
    "_grid_sampler_2d_cpu_fallback_backward": sampled_grid_backward,
    **{
        f"_foreach_{name}.Tensor": scaled_by_tensor(f"_foreach_{name}")
        for name in ("addcmul", "addcmul_", "addcdiv", "addcdiv_")
    },
}
