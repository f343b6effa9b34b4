"""Shapes and refusals of fake quantization, which has no meta functions in torch."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.inference.infer import override

aten = torch.ops.aten


@override("aten._aminmax.default", "aten._aminmax.dim")
def aminmax(self: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return aten.aminmax.default(self, dim=dim, keepdim=keepdim)


def check_range(quant_min: int, quant_max: int) -> None:
    if quant_min > quant_max:
        raise RuntimeError("`quant_min` should be less than or         equal to `quant_max`.")


def _check_channels(self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int) -> None:
    if not 0 <= axis < self.dim():
        raise RuntimeError("`axis` must be between 0 and number of dimensions of input")
    if scale.dim() != 1:
        raise RuntimeError("scale should be a 1-D tensor")
    if zero_point.dim() != 1:
        raise RuntimeError("zero point should be a 1-D tensor")
    if scale.numel() != zero_point.numel():
        raise RuntimeError("scale and zero-point need to have the same dimensions")
    if scale.numel() != self.size(axis):
        raise RuntimeError("dimensions of scale and zero-point are not consistent with input tensor")


def _masked(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(self), torch.empty_like(self, dtype=torch.bool)


@override(
    "aten.fake_quantize_per_tensor_affine_cachemask.default",
    "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default",
)
def per_tensor(
    self: torch.Tensor, quant_min: int, quant_max: int, zero_point: torch.Tensor | int, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """(numbers, whether each is in range)."""
    check_range(quant_min, quant_max)
    if not isinstance(zero_point, torch.Tensor) and not quant_min <= zero_point <= quant_max:
        raise RuntimeError("`zero_point` must be between `quant_min` and `quant_max`.")
    return _masked(self)


@override("aten.fake_quantize_per_channel_affine_cachemask.default")
def per_channel(
    self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_channels(self, scale, zero_point, axis)
    check_range(quant_min, quant_max)
    return _masked(self)


@override("aten._fake_quantize_learnable_per_tensor_affine.default")
def learned_per_tensor(self: torch.Tensor, quant_min: int, quant_max: int, **_: Any) -> torch.Tensor:
    check_range(quant_min, quant_max)
    return torch.empty_like(self)


@override("aten._fake_quantize_learnable_per_channel_affine.default")
def learned_per_channel(
    self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, **rest: Any
) -> torch.Tensor:
    _check_channels(self, scale, zero_point, axis)
    check_range(rest["quant_min"], rest["quant_max"])
    return torch.empty_like(self)


@override("aten._transform_bias_rescale_qkv.default")
def rescaled_heads(qkv: torch.Tensor, qkv_bias: torch.Tensor, num_heads: int) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values: [batch, heads, length, features of a head]."""
    features = qkv_bias.shape[0] // 3
    if features % num_heads:
        raise RuntimeError("Expected D % num_heads == 0 to be true, but got false.")
    shape = (qkv.shape[0], num_heads, qkv.shape[1], features // num_heads)
    return tuple([torch.empty(shape, dtype=qkv.dtype, device="meta") for _ in range(3)])


def _gradients(
    self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of the numbers, their scales and their zero points."""
    return torch.empty_like(self), torch.empty_like(scale), torch.empty_like(zero_point)


@override("aten._fake_quantize_learnable_per_tensor_affine_backward.default")
def learned_per_tensor_backward(
    self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, quant_min: int, quant_max: int, **_: Any
) -> tuple[torch.Tensor, ...]:
    if not quant_min <= 0 <= quant_max:
        raise RuntimeError(
            "`quant_min` should be less than or         equal to `quant_max`, "
            "and the quantization range should include 0."
        )
    return _gradients(self, scale, zero_point)


@override("aten._fake_quantize_learnable_per_channel_affine_backward.default")
def learned_per_channel_backward(
    self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, quant_min: int, quant_max: int, **_: Any
) -> tuple[torch.Tensor, ...]:
    if not quant_min <= 0 <= quant_max:
        raise RuntimeError("Expecting `quant_min` <= 0 and `quant_max` >= 0")
    return _gradients(self, scale, zero_point)
