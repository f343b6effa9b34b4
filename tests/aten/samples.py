"""Tensors with values that distinguish implementations: signed zeros, infinities, NaN, ties, whole and large
numbers."""

from __future__ import annotations

import math

import torch

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
ALL = (*FLOATS, *INTEGERS, torch.bool, torch.complex64)

_SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 6.0, 7.3, -7.3]
_FLOATS = [*_SPECIAL, 20.5, 80.0, -80.0, 100.0, -120.0, 1e-3, -1e-3, 1e-7, 0.25, 0.9, -0.9, 4.0, 10.0, -10.0]
_INTEGERS = [0, 1, 2, 3, -1, -2, -3, 5, 7, -7, 100, -100, 10, 13, -13, 4, 6, 8, 9, 11, 12, -4, -5, -6, -8, 50, -50, 20]
_COMPLEX = [0, 1, -1, 1j, -1j, 3 - 4j, 0.5 + 0.25j, -2.5 + 1e-3j, 1e-3 - 2j, -0.7 - 0.9j, 2 + 2j, -3 + 0.1j]


def sample(dtype: torch.dtype, order: int = 0) -> torch.Tensor:
    """A vector of distinguishing values of `dtype`; another `order` permutes them."""
    numbers: list[complex] = list(_COMPLEX if dtype.is_complex else _FLOATS if dtype.is_floating_point else _INTEGERS)
    if dtype is torch.bool:
        return torch.arange(28) * (order + 3) % 5 % 2 == 0
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64
    values = torch.tensor(numbers, dtype=wide).to(dtype)
    if order:
        values = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(order))]
    return values


def finite(dtype: torch.dtype, order: int = 0) -> torch.Tensor:
    """`sample` without infinities and NaN."""
    values = sample(dtype, order)
    return torch.where(torch.isfinite(values), values, torch.ones_like(values))


def nonzero(dtype: torch.dtype, order: int = 0) -> torch.Tensor:
    """`sample` without 0, for integers, whose division by 0 is an error."""
    values = sample(dtype, order)
    return values if dtype.is_floating_point else torch.where(values == 0, torch.ones_like(values), values)


def normal(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, rounded to `dtype`."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
