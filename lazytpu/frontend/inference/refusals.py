"""Arguments that the CPU's kernels reject and torch's meta functions accept, op by op. Checked on the miss path.

Each function gets the op's arguments by name. If it raises, the CPU's own message is used unless tensors are large
(`cpu_errors`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

REFUSALS: dict[str, Callable[..., None]] = {}
MAX_DIMS_OF_A_SET = 64
"""Torch's kernels keep a set of dims in the bits of an integer."""


def refusal(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the decorated function for the overloads `names`."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        REFUSALS.update(dict.fromkeys(names, function))
        return function

    return register


@refusal("aten.max.default", "aten.min.default")
def extremum(self: torch.Tensor) -> None:
    if self.numel() == 0:
        raise RuntimeError("Expected reduction dim to be specified for input.numel() == 0.")


@refusal("aten.max.dim", "aten.min.dim")
def extremum_along(self: torch.Tensor, dim: int, keepdim: bool = False) -> None:
    if self.dim() and self.shape[dim] == 0:
        raise IndexError(f"Expected reduction dim {dim} to have non-zero size.")
    some_dims(self, dim)


@refusal("aten.argmax.default", "aten.argmin.default", "aten.nansum.default")
def some_dims(self: torch.Tensor, dim: int | list[int] | None = None, **unused: Any) -> None:
    if dim is not None and self.dim() > MAX_DIMS_OF_A_SET:
        raise RuntimeError(f"only tensors with up to {MAX_DIMS_OF_A_SET} dims are supported")


@refusal("aten.flip.default")
def flipped(self: torch.Tensor, dims: list[int]) -> None:
    some_dims(self, dims)


@refusal("aten._scaled_mm.default")
def scaled_product(self: torch.Tensor, mat2: torch.Tensor, **unused: Any) -> None:
    if self.dim() == mat2.dim() == 2 and self.shape[1] != mat2.shape[0]:
        shapes = f"{self.shape[0]}x{self.shape[1]} and {mat2.shape[0]}x{mat2.shape[1]}"
        raise RuntimeError(f"mat_a and mat_b shapes cannot be multiplied ({shapes})")


@refusal("aten.sort.default", "aten.sort.stable")
def sort(self: torch.Tensor, dim: int = -1, **order: Any) -> None:
    if self.is_complex():
        raise RuntimeError("Sort does not support complex dtypes on CPU")
    rank = max(self.dim(), 1)
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")


@refusal("aten.std.correction", "aten.var.correction", "aten.std_mean.correction", "aten.var_mean.correction")
def spread(self: torch.Tensor, *unused: Any, **options: Any) -> None:
    if not (self.is_floating_point() or self.is_complex()):
        raise RuntimeError("std and var only support floating point and complex dtypes")


@refusal("aten.rrelu_with_noise.default", "aten.rrelu_with_noise_.default")
def noise(self: torch.Tensor, training: bool = False, **unused: Any) -> None:
    if training and self.dtype == torch.float16:
        raise NotImplementedError("\"rrelu_with_noise_out_cpu\" not implemented for 'Half'")


@refusal("aten.pow.Tensor_Scalar", "aten.pow_.Scalar")
def power(self: torch.Tensor, exponent: Any) -> None:
    if type(exponent) is int and exponent < 0 and not (self.is_floating_point() or self.is_complex()):
        raise RuntimeError("Integers to negative integer powers are not allowed.")


@refusal(*(f"aten._foreach_pow{write}.{kind}" for write in ("", "_") for kind in ("Scalar", "ScalarList")))
def powers(self: list[torch.Tensor], exponent: Any) -> None:
    exponents = exponent if isinstance(exponent, list | tuple) else [exponent] * len(self)
    for each, number in zip(self, exponents, strict=False):
        power(each, number)


@refusal("aten.fractional_max_pool2d.default", "aten.fractional_max_pool3d.default")
def samples(
    self: torch.Tensor, kernel_size: list[int], output_size: list[int], random_samples: torch.Tensor
) -> None:
    rank = len(output_size)
    if self.dim() in (rank + 1, rank + 2):
        batch = self.shape[0] if self.dim() == rank + 2 else 1
        shape, expected = list(random_samples.shape), [self.shape[-rank - 1], rank]
        if len(shape) != 3 or shape[0] < batch or shape[1:] != expected:
            raise RuntimeError(f"expected samples of shape {[batch, *expected]}, but got {shape}")


@refusal("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss(self: torch.Tensor, target: torch.Tensor, *unused: Any, **options: Any) -> None:
    if target.dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {target.dtype}")
