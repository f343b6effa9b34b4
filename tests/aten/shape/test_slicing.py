"""Backward ops of slices, against torch's CPU."""

from __future__ import annotations

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return (torch.randn(shape) * 4).to(dtype)


SLICES = [
    (0, 0, 3, 1),
    (1, 1, 3, 1),
    (-1, 1, 99, 2),
    (0, -2, 9223372036854775807, 1),
    (2, 0, 5, 4),
    (1, 2, 2, 1),
    (1, 3, 1, 1),
]


@pytest.mark.parametrize(("dim", "start", "end", "step"), SLICES)
def test_slices(dim: int, start: int, end: int, step: int) -> None:
    x = values(3, 4, 5)
    sliced = A.slice.Tensor(x, dim, start, end, step)
    check(A.slice_scatter.default, x, values(*sliced.shape), dim, start, end, step)
    check(A.slice_backward.default, values(*sliced.shape), [3, 4, 5], dim, start, end, step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    x = values(3, 4, dtype=dtype)
    check(A.slice_scatter.default, x, values(2, 4, dtype=dtype), 0, 0, 3, 2)
    check(A.select_scatter.default, x, values(3, dtype=dtype), 1, 2)
    check(A.select_backward.default, values(3, dtype=dtype), [3, 4], 1, -1)
    check(A.diagonal_scatter.default, x, values(3, dtype=dtype), 1)


def test_defaults() -> None:
    check(A.slice_scatter.default, values(3, 4), values(3, 4) + 1)
    check(A.slice_scatter.default, values(3, 4), values(1, 4), 0, None, 1)


@pytest.mark.parametrize(("dim", "index"), [(0, 0), (0, -1), (1, 2), (-1, -4)])
def test_selected(dim: int, index: int) -> None:
    x = values(3, 4, 5)
    plane = A.select.int(x, dim, index)
    check(A.select_scatter.default, x, values(*plane.shape), dim, index)
    check(A.select_backward.default, values(*plane.shape), [3, 4, 5], dim, index)


@pytest.mark.parametrize(("offset", "dim1", "dim2"), [(0, 0, 1), (1, 0, 1), (-2, 2, 0), (2, -1, 1), (9, 0, 1)])
def test_diagonals(offset: int, dim1: int, dim2: int) -> None:
    x = values(3, 4, 5)
    diagonal = A.diagonal.default(x, offset, dim1, dim2) if offset < 9 else torch.ones(5, 0)
    if offset < 9:
        check(A.diagonal_scatter.default, x, values(*diagonal.shape), offset, dim1, dim2)
    check(A.diagonal_backward.default, values(*diagonal.shape), [3, 4, 5], offset, dim1, dim2)


def test_strided() -> None:
    check(A.as_strided_scatter.default, values(4, 5), values(2, 3), [2, 3], [5, 1], 6)
    check(A.as_strided_scatter.default, values(4, 5), values(3), [3], [6])


def test_ops_that_torch_decomposes() -> None:
    check(A.unfold_backward.default, values(2, 5, 3), [4, 5], 0, 3, 1)
    check(A.diag_embed.default, values(3), 1)
    check(A.narrow_copy.default, values(4, 5), 1, 2, 2)
