"""Sampling at given points, and its gradients, against torch's CPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(shape).to(dtype)


def check_all(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align: bool, **loose: float) -> None:
    rank = x.dim() - 2
    check(getattr(A, f"grid_sampler_{rank}d").default, x, grid, mode, padding, align, **loose)
    grad = values(*x.shape[:2], *grid.shape[1:-1], dtype=x.dtype)
    backward = getattr(A, f"grid_sampler_{rank}d_backward").default
    check(backward, grad, x, grid, mode, padding, align, [True, True], **loose)


def cases() -> list[Any]:
    """The gate has every mode with every padding once, and both corner alignments with every mode and padding."""
    every = list(itertools.product((0, 1, 2), (0, 1, 2), (False, True)))
    in_gate = [align == (mode == padding) for mode, padding, align in every]
    return [pytest.param(*case, marks=() if gate else pytest.mark.long) for case, gate in zip(every, in_gate)]


@pytest.mark.parametrize(("mode", "padding", "align"), cases())
def test_images(mode: int, padding: int, align: bool) -> None:
    grid = values(2, 4, 3, 2) * 1.2  # some places are outside
    check_all(values(2, 3, 5, 6), grid, mode, padding, align, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1])
def test_volumes(mode: int, padding: int) -> None:
    check_all(values(1, 2, 3, 4, 5), values(1, 2, 3, 2, 3) * 1.2, mode, padding, False, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    loose = {"rtol": 0.05, "atol": 0.05} if dtype.itemsize == 2 else {}
    x, grid = values(2, 3, 5, 6, dtype=dtype), (values(2, 4, 3, 2) / 2).to(dtype)
    check(A.grid_sampler_2d.default, x, grid, 0, 0, False, **loose)


def test_mask() -> None:
    x, grid, grad = values(1, 2, 5, 6), values(1, 4, 3, 2), values(1, 2, 4, 3)
    wanted = A.grid_sampler_2d_backward.default(grad, x, grid, 0, 0, False, [True, True])[1]
    (got,) = run(A.grid_sampler_2d_backward.default, grad, x, grid, 0, 0, False, [False, True], outs=[wanted])
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
