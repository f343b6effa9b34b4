"""Meta functions of ops that keep an input's memory format or strides, where torch's own meta functions do not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from lazytpu.frontend.inference.infer import OVERRIDES, override
from lazytpu.frontend.torch_private import suggest_memory_format

aten = torch.ops.aten


def contiguous(result: Tensor) -> Tensor:
    """Return the (meta) result, contiguous."""
    return torch.empty(result.shape, dtype=result.dtype, device="meta")


def of_format(result: Tensor, input: Tensor) -> Tensor:
    """Return the (meta) result in the memory format of an input of the same rank: channels_last or contiguous."""
    memory_format = suggest_memory_format(input) if input.dim() == result.dim() else torch.contiguous_format
    return torch.empty(result.shape, dtype=result.dtype, device="meta", memory_format=memory_format)


def _keeps_format(op: OpOverload, name: str) -> None:
    def infer(**arguments: Any) -> Tensor:
        return of_format(op(**arguments), arguments[name])

    OVERRIDES[str(op)] = infer


for _name, _input in (
    *((f"{kind}_pad{rank}d{of}", "self")
      for kind in ("reflection", "replication") for rank in (2, 3) for of in ("", "_backward")),
    ("upsample_nearest2d", "self"),
    ("_upsample_nearest_exact2d", "self"),
    ("upsample_bilinear2d", "self"),
    ("upsample_bicubic2d", "self"),
    ("upsample_trilinear3d", "self"),
):
    _keeps_format(getattr(aten, _name).default, _input)


@override("aten.roll.default")
def roll(self: Tensor, shifts: list[int], dims: list[int] | None = None) -> Tensor:
    """Along one dimension, the CPU concatenates two slices (`roll_cpu`), and `cat` keeps the memory format."""
    result = aten.roll.default(self, shifts, dims or [])
    return of_format(result, self) if dims and len(dims) == 1 and self.numel() else result


@override("aten.pow.Scalar")
def pow_of_number(**arguments: Any) -> Tensor:
    return contiguous(aten.pow.Scalar(*arguments.values()))


@override("aten.log_sigmoid_forward.default")
def log_sigmoid(self: Tensor) -> tuple[Tensor, Tensor]:
    result, buffer = aten.log_sigmoid_forward.default(self)
    return contiguous(result), contiguous(buffer)


@override("aten.col2im.default")
def col2im(**arguments: Any) -> Tensor:
    """The result is contiguous; the meta function crops a larger tensor."""
    return contiguous(aten.col2im.default(**arguments))


@override("aten.angle.default")
def angle(self: Tensor) -> Tensor:
    """The result is contiguous for complex numbers."""
    result = aten.angle.default(self)
    return contiguous(result) if self.is_complex() else result


def _like_self(op: OpOverload) -> None:
    def infer(**arguments: Any) -> Tensor:
        result, self = op(**arguments), arguments["self"]
        return torch.empty_like(self, dtype=result.dtype) if result.shape == self.shape and self.dim() else result

    OVERRIDES[str(op)] = infer


def _sorted_like_self(op: OpOverload) -> None:
    def infer(**arguments: Any) -> tuple[Tensor, Tensor]:
        values, indices = (torch.empty_like(arguments["self"], dtype=t.dtype) for t in op(**arguments))
        return values, indices

    OVERRIDES[str(op)] = infer


_sorted_like_self(aten.sort.default)
_sorted_like_self(aten.sort.stable)
_like_self(aten.binary_cross_entropy.default)


@override("aten.huber_loss.default")
def huber_loss(self: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    """The result has the layout and dtype of self, whatever the target's dtype is."""
    result = aten.huber_loss.default(self, target, reduction, delta)
    if result.shape == self.shape and self.dim():
        return torch.empty_like(self)
    return result.to(self.dtype)
