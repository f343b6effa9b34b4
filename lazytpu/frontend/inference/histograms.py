"""Shapes and errors of histograms, for which torch has no meta functions; messages are those of Histogram.cpp."""

from __future__ import annotations

import builtins
import math
from typing import Any

import torch

from lazytpu.frontend.inference.indexing import scalar_type
from lazytpu.frontend.inference.infer import override

aten = torch.ops.aten


def _check_histogram(self: torch.Tensor, weight: torch.Tensor | None, rows: list[int], shape: list[int]) -> None:
    if weight is None:
        return
    if weight.dtype != self.dtype:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor should have the same "
            f"dtype, but got input({self.dtype}), and weight({weight.dtype})"
        )
    if rows != shape:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided it should have the same shape as the input tensor "
            f"excluding its innermost dimension, but got input with shape {list(self.shape)} and weight with shape "
            f"{list(weight.shape)}"
        )


def _check_edges(self: torch.Tensor, dim: int, edges: torch.Tensor) -> None:
    if edges.dtype != self.dtype:
        raise RuntimeError(
            "torch.histogramdd: input tensor and bins tensors should have the same dtype, but got input with dtype "
            f"{self.dtype} and bins for dimension {dim} with dtype {edges.dtype}"
        )
    if edges.dim() != 1:
        raise RuntimeError(
            f"torch.histogramdd: bins tensor should have one dimension, but got {edges.dim()} dimensions in the bins "
            f"tensor for dimension {dim}"
        )
    if edges.numel() == 0:
        raise RuntimeError(
            "torch.histogramdd: bins tensor should have at least 1 element, but got 0 elements in the bins tensor for "
            f"dimension {dim}"
        )


def _check_bins(
    self: torch.Tensor, bins: list[int], range: list[float] | None, floats: tuple[torch.dtype, ...]
) -> None:
    for dim, count in enumerate(bins):
        if count <= 0:
            raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {count} for dimension {dim}")
    if self.dtype not in floats:
        raise NotImplementedError(f"\"histogramdd\" not implemented for '{scalar_type(self.dtype)}'")
    if range is None:
        return
    if len(range) != 2 * len(bins):
        raise RuntimeError(
            f"torch.histogramdd: for a {len(bins)}-dimensional histogram range should have {2 * len(bins)} elements, "
            f"but got {len(range)}"
        )
    for dim in builtins.range(len(bins)):
        low, high = range[2 * dim : 2 * dim + 2]
        if not (math.isfinite(low) and math.isfinite(high)):
            raise RuntimeError(f"torch.histogramdd: dimension {dim}'s range [{low}, {high}] is not finite")
        if low > high:
            raise RuntimeError(
                f"torch.histogramdd: min should not exceed max, but got min {low} max {high} for dimension {dim}"
            )


_FLOATS = (torch.float32, torch.float64)
_BINNED = (*_FLOATS, torch.bfloat16, torch.float16)


def _weights(weight: torch.Tensor | None) -> list[int]:
    return [] if weight is None else list(weight.shape) or [1]


@override("aten.histc.default")
def histc(**arguments: Any) -> torch.Tensor:
    """The CPU counts floats only. Integers are accepted here, as on CUDA, since models use them on every device but the
    CPU."""
    dtype = arguments["self"].dtype
    if dtype is torch.bool or dtype.is_complex:
        kind = scalar_type(arguments["self"].dtype)
        raise NotImplementedError(f"\"histogram_cpu\" not implemented for '{kind}'")
    return aten.histc.default(**arguments)


@override("aten.histogram.bin_ct")
def histogram(
    self: torch.Tensor,
    bins: int = 100,
    range: list[float] | None = None,
    weight: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch has no meta function for this overload."""
    _check_bins(self, [bins], range, _FLOATS if range is None and self.numel() else _BINNED)
    _check_histogram(self, weight, [self.numel()], [0 if weight is None else weight.numel()])
    return self.new_empty(bins), self.new_empty(bins + 1)


@override("aten.histogram.bins_tensor")
def histogram_of_edges(
    self: torch.Tensor, bins: torch.Tensor, weight: torch.Tensor | None = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch has no meta function for this overload."""
    _check_edges(self, 0, bins)
    _check_histogram(self, weight, [self.numel()], [0 if weight is None else weight.numel()])
    _check_bins(self, [bins.numel() - 1], None, _BINNED)
    return self.new_empty(bins.numel() - 1), self.new_empty(bins.numel())


def _check_points(self: torch.Tensor, count: int) -> None:
    if self.dim() < 2:
        raise RuntimeError("torch.histogramdd: input tensor should have at least 2 dimensions")
    if count != self.shape[-1]:
        raise RuntimeError(
            f"torch.histogramdd: expected {self.shape[-1]} sequences of bin edges for a {self.shape[-1]}-dimensional "
            f"histogram but got {count}"
        )


@override("aten._histogramdd_bin_edges.default")
def histogramdd_bin_edges(
    self: torch.Tensor, bins: list[int], range: list[float] | None = None, **_: Any
) -> list[torch.Tensor]:
    """torch has no meta function for this overload."""
    _check_points(self, len(bins))
    _check_bins(self, bins, range, _FLOATS if range is None and self.numel() else _BINNED)
    return [self.new_empty(count + 1) for count in bins]


@override("aten._histogramdd_from_bin_cts.default")
def histogramdd(
    self: torch.Tensor,
    bins: list[int],
    range: list[float] | None = None,
    weight: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """torch has no meta function for this overload."""
    histogramdd_bin_edges(self, bins, range)
    _check_histogram(self, weight, list(self.shape[:-1]), _weights(weight))
    return self.new_empty(bins)


@override("aten._histogramdd_from_bin_tensors.default")
def histogramdd_of_edges(
    self: torch.Tensor, bins: list[torch.Tensor], weight: torch.Tensor | None = None, **_: Any
) -> torch.Tensor:
    """torch has no meta function for this overload."""
    _check_points(self, len(bins))
    for dim, edges in enumerate(bins):
        _check_edges(self, dim, edges)
    _check_histogram(self, weight, list(self.shape[:-1]), _weights(weight))
    _check_bins(self, [edges.numel() - 1 for edges in bins], None, _BINNED)
    return self.new_empty([edges.numel() - 1 for edges in bins])
