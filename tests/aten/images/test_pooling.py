"""Max and average pooling, with gradients, against torch's CPU."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# input, kernel, stride, padding, dilation, ceil mode
MAX = [
    ((2, 3, 8, 8), [2, 2], [2, 2], [0, 0], [1, 1], False),
    ((2, 3, 9, 7), [3, 3], [2, 2], [1, 1], [1, 1], False),
    ((2, 3, 9, 7), [3, 2], [2, 1], [1, 0], [1, 2], True),
    ((3, 8, 8), [2, 3], [], [0, 1], [1, 1], True),
    ((1, 2, 7, 7), [2, 2], [3, 3], [0, 0], [1, 1], True),
    ((1, 2, 6, 6), [3, 3], [1, 1], [1, 1], [1, 1], False),
]
MAX3 = [
    ((1, 2, 6, 5, 7), [2, 2, 3], [2, 2, 2], [1, 0, 1], [1, 1, 1], True),
    ((2, 4, 4, 6), [2], [2], [0], [1], False),
]
# input, kernel, stride, padding, ceil mode, count padding, divisor
AVG = [
    ((2, 3, 8, 8), [2, 2], [2, 2], [0, 0], False, True, None),
    ((2, 3, 9, 7), [3, 3], [2, 2], [1, 1], False, True, None),
    ((2, 3, 9, 7), [3, 2], [2, 1], [1, 0], True, False, None),
    ((3, 8, 7), [3, 3], [], [1, 1], True, True, None),
    ((1, 2, 7, 7), [2, 2], [3, 3], [0, 0], True, True, 3),
    ((1, 2, 40, 6), [35, 6], [1, 1], [0, 0], False, True, None),
    ((1, 2, 9, 9), [4, 4], [4, 4], [1, 1], True, True, None),
]
AVG3 = [
    ((1, 2, 6, 5, 7), [2, 2, 3], [2, 1, 2], [1, 0, 1], True, False, None),
    ((2, 4, 4, 6), [2], [2], [0], False, True, None),
]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(0, 9, shape).to(dtype)


def loose(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 0.02, "atol": 0.02} if dtype in (torch.float16, torch.bfloat16) else {}


def check_max(case: tuple, rank: int, dtype: torch.dtype) -> None:
    shape, *options = case
    x = values(*shape, dtype=dtype)
    forward = getattr(A, f"max_pool{rank}d_with_indices").default
    check(forward, x, *options)
    if dtype.is_floating_point:
        y, indices = forward(x, *options)
        grad = values(*y.shape, dtype=dtype)
        options[1] = options[1] or options[0]
        backward = getattr(A, f"max_pool{rank}d_with_indices_backward").default
        check(backward, grad, x, *options, indices, **loose(dtype))


@pytest.mark.parametrize("case", MAX, ids=str)
def test_max(case: tuple) -> None:
    check_max(case, 2, torch.float32)


@pytest.mark.parametrize("case", MAX3, ids=str)
def test_max_3d(case: tuple) -> None:
    check_max(case, 3, torch.float32)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("case", MAX[1:3], ids=str)
def test_max_dtypes(case: tuple, dtype: torch.dtype) -> None:
    check_max(case, 2, dtype)


def test_ties_and_infinities() -> None:
    x = torch.tensor([0.0, 1.0, -inf, nan]).repeat(64)[torch.randperm(256)].reshape(1, 1, 16, 16)
    check(A.max_pool2d_with_indices.default, x.nan_to_num(nan=0.0, neginf=-inf), [3, 3], [2, 2], [1, 1])
    check(A.max_pool2d_with_indices.default, x, [3, 3], [2, 2], [1, 1])
    check(A.max_pool2d_with_indices.default, torch.full((1, 1, 5, 5), -inf), [3, 3], [2, 2], [1, 1])
    check(A.max_pool2d_with_indices.default, torch.ones(0, 2, 5, 5), [2, 2])
    check(A.max_pool2d_with_indices.default, torch.ones(1, 5, 5), [2])


def check_avg(case: tuple, rank: int, dtype: torch.dtype) -> None:
    shape, *options = case
    x = values(*shape, dtype=dtype)
    forward = getattr(A, f"avg_pool{rank}d").default
    check(forward, x, *options, **loose(dtype))
    if dtype.is_floating_point:
        grad = values(*forward(x, *options).shape, dtype=dtype)
        options[1] = options[1] or options[0]
        check(getattr(A, f"avg_pool{rank}d_backward").default, grad, x, *options, **loose(dtype))


@pytest.mark.parametrize("case", AVG, ids=str)
def test_avg(case: tuple) -> None:
    check_avg(case, 2, torch.float32)


@pytest.mark.parametrize("case", AVG3, ids=str)
def test_avg_3d(case: tuple) -> None:
    check_avg(case, 3, torch.float32)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
def test_avg_dtypes(dtype: torch.dtype) -> None:
    check_avg(AVG[1], 2, dtype)
    check_avg(AVG[2], 2, dtype)
