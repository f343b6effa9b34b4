"""Adaptive and fractional pooling, unpooling, with gradients, against torch's CPU."""

from __future__ import annotations

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SIZES = [
    ((2, 3, 8, 6), [4, 3]),
    ((2, 3, 8, 6), [1, 1]),
    ((2, 3, 7, 10), [3, 4]),
    ((3, 5, 4), [5, 7]),
    ((1, 2, 7, 9), [7, 2]),
]
SIZES3 = [((1, 2, 6, 7, 5), [3, 3, 2]), ((2, 4, 4, 6), [2, 2, 3])]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(shape).to(dtype)


def check_all(shape: tuple[int, ...], size: list[int], rank: int, dtype: torch.dtype) -> None:
    x = values(*shape, dtype=dtype)
    loose = {"rtol": 0.02, "atol": 0.02} if dtype in (torch.float16, torch.bfloat16) else {}
    grad = values(*shape[:-rank], *size, dtype=dtype)
    check(getattr(A, f"_adaptive_avg_pool{rank}d").default, x, size, **loose)
    check(getattr(A, f"_adaptive_avg_pool{rank}d_backward").default, grad, x, **loose)
    forward = getattr(A, f"adaptive_max_pool{rank}d").default
    check(forward, x, size)
    check(getattr(A, f"adaptive_max_pool{rank}d_backward").default, grad, x, forward(x, size)[1], **loose)


@pytest.mark.parametrize(("shape", "size"), SIZES, ids=str)
def test_2d(shape: tuple[int, ...], size: list[int]) -> None:
    check_all(shape, size, 2, torch.float32)


@pytest.mark.parametrize(("shape", "size"), SIZES3, ids=str)
def test_3d(shape: tuple[int, ...], size: list[int]) -> None:
    check_all(shape, size, 3, torch.float32)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    check_all(*SIZES[2], 2, dtype)


def test_ties_and_empty() -> None:
    x = torch.ones(1, 1, 7, 9)
    check(A.adaptive_max_pool2d.default, x, [3, 4])
    check(A._adaptive_avg_pool2d.default, torch.ones(0, 2, 7, 9), [3, 4])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan(dtype: torch.dtype) -> None:
    """The last NaN of a window counts, for overlapping and for disjoint windows."""
    torch.manual_seed(0)
    for shape, size in (((1, 2, 7, 9), [3, 4]), ((1, 2, 8, 6), [4, 3]), ((1, 2, 5, 6, 7), [2, 4, 3])):
        x, rank = values(*shape, dtype=dtype), len(size)
        for with_nans in (torch.full_like(x, float("nan")), x.masked_fill(torch.rand(shape) < 0.3, float("nan"))):
            check(getattr(A, f"adaptive_max_pool{rank}d").default, with_nans, size)
            if dtype != torch.bfloat16:
                samples = torch.rand(shape[0], shape[1], rank).to(dtype)
                check(getattr(A, f"fractional_max_pool{rank}d").default, with_nans, [2] * rank, size, samples)


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_fractional(dtype: torch.dtype) -> None:
    x, samples = values(2, 3, 9, 11, dtype=dtype), torch.rand(2, 3, 2).to(dtype)
    args = (x, [2, 3], [4, 5])
    check(A.fractional_max_pool2d.default, *args, samples)
    indices = A.fractional_max_pool2d.default(*args, samples)[1]
    check(A.fractional_max_pool2d_backward.default, values(2, 3, 4, 5, dtype=dtype), *args, indices)
    x, samples = values(1, 2, 6, 7, 8, dtype=dtype), torch.rand(1, 2, 3).to(dtype)
    if dtype.itemsize > 2:
        check(A.fractional_max_pool3d.default, x, [2, 3, 2], [3, 1, 4], samples)


def test_unpooling() -> None:
    y, indices = A.max_pool2d_with_indices(values(2, 3, 8, 8), [2, 2])
    check(A.max_unpool2d.default, y, indices, [8, 8])
    y, indices = A.max_pool3d_with_indices(values(2, 3, 4, 4, 6), [2, 2, 2])
    check(A.max_unpool3d.default, y, indices, [4, 4, 6], [2, 2, 2], [0, 0, 0])
