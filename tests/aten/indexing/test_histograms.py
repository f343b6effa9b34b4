"""Histograms, with and without bounds, in one dimension and several."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def values(*shape: int) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape)


@pytest.mark.parametrize("bounds", [(0, 0), (-1, 1), (0.25, 0.75), (-3, 7)])
def test_histc(bounds: tuple[float, float]) -> None:
    x = torch.linspace(-2, 2, 41).reshape(41)
    check(A.histc.default, x, 8, *bounds)
    check(A.histc.default, torch.cat([x, torch.tensor([nan])]), 5, -1, 1)


def test_one_value_and_none() -> None:
    check(A.histc.default, torch.full((3, 2), 4.0), 4, 0, 0)
    check(A.histc.default, torch.zeros(0), 4, 0, 0)
    for op in (A.histogram.bin_ct,):
        check(op, torch.full((3, 2), 4.0), 4)
        check(op, torch.zeros(0), 4)
        check(op, torch.tensor(2.0), 3)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bounds_and_edges(dtype: torch.dtype) -> None:
    x = (values(20) * 2).round().to(dtype) / 2  # many lie on edges
    check(A.histogram.bin_ct, x, 4, range=[-1.0, 1.0])
    check(A.histogram.bins_tensor, x, torch.tensor([-1.0, -0.5, 1.0, 2.0], dtype=dtype))
    check(A.histogram.bins_tensor, x, torch.linspace(-2, 2, 70).to(dtype))
    check(A._histogramdd_from_bin_tensors.default, x.reshape(20, 1), [torch.tensor([-1.0, 0.0, 1.0], dtype=dtype)])


@pytest.mark.parametrize("density", [False, True])
def test_weights(density: bool) -> None:
    x, weight = values(20), torch.arange(20.0)
    check(A.histogram.bin_ct, x, 5, weight=weight, density=density)
    check(A.histogram.bins_tensor, x, torch.tensor([-1.0, 0.0, 0.1, 3.0]), weight=weight, density=density)
    points, bins = values(4, 5, 2), [3, 2]
    for weights in (None, weight.reshape(4, 5)):
        check(A._histogramdd_from_bin_cts.default, points, bins, weight=weights, density=density)
        edges = [torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([-2.0, 2.0])]
        check(A._histogramdd_from_bin_tensors.default, points, edges, weight=weights, density=density)
    check(A._histogramdd_bin_edges.default, points, bins)
    check(A._histogramdd_bin_edges.default, points, bins, range=[-1.0, 1.0, 0.0, 0.0])


def test_nan_and_infinities() -> None:
    x = torch.tensor([nan, 1.0, inf, -inf, 0.5])
    check(A.histogram.bin_ct, x, 2, range=[0.0, 1.0])
    check(A.histogram.bins_tensor, x, torch.tensor([0.0, 1.0, inf]))
    for wrong in (x, x[:2], x[1:3]):
        with pytest.raises(IndexError, match="not finite"):
            run(A.histogram.bin_ct, wrong, 2, outs=[torch.empty(2), torch.empty(3)])
    with pytest.raises(IndexError, match="max must be larger"):
        run(A.histc.default, x[4:], 2, 1, 0, outs=[torch.empty(2)])
