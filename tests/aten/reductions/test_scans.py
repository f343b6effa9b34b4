"""Running sums, products, extremes, log-sums, against torch's CPU."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.uint8, torch.bool]


def values(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(len(shape))
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, dtype=torch.float64).to(dtype) + 0.5
    return torch.randint(0, 4, shape).to(dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.complex64], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_sums_and_products(dtype: torch.dtype, dim: int) -> None:
    x = values(5, 7, dtype=dtype)
    check(A.cumsum.default, x, dim)
    check(A.cumprod.default, x, dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_intermediate_overflow_is_reversible(dtype: torch.dtype) -> None:
    big, ulp = torch.finfo(dtype).max * 0.9, torch.finfo(dtype).eps
    check(A.cumsum.default, torch.tensor([big, big, -big, -big, 1], dtype=dtype), 0)
    check(A.cumprod.default, torch.tensor([big, big, *[big**-0.5] * 3, 2], dtype=dtype), 0, rtol=2 * ulp, atol=0)


def test_options() -> None:
    x = values(3, 4, dtype=torch.float32)
    check(A.cumsum.default, x, 1, dtype=torch.float64)
    check(A.cumprod.default, x, 1, dtype=torch.int32)
    check(A.cumsum.default, torch.tensor(3), 0)
    check(A.cumsum.default, torch.ones(0, 3), 1)
    check(A.cumsum.default, values(1000, dtype=torch.float32), 0)
    check(A.cumsum_.default, x, 0)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_extremes(dtype: torch.dtype, dim: int) -> None:
    x = (values(5, 9, dtype=dtype) * (4 if dtype.is_floating_point else 1)).round() if dtype != torch.bool else None
    x = values(5, 9, dtype=dtype) if x is None else x.to(dtype)
    check(A.cummax.default, x, dim)
    check(A.cummin.default, x, dim)


def test_extremes_of_nan() -> None:
    x = torch.tensor([[1.0, 3.0, nan, 2.0, nan, 5.0], [-inf, -inf, 2.0, 2.0, inf, nan]])
    check(A.cummax.default, x, 1)
    check(A.cummin.default, x, 1)
    check(A.cummax.default, torch.tensor(2.0), 0)
    check(A.cummin.default, torch.ones(0, 2), 0)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_log_sums(dtype: torch.dtype, dim: int) -> None:
    check(A.logcumsumexp.default, values(5, 7, dtype=dtype) * 3, dim)


def test_complex_phases() -> None:
    x = torch.tensor([1 + 4j, 2 - 5j, 0.5 + 9j, 3 + 3j])
    check(A.logcumsumexp.default, x, 0)
    check(A.logcumsumexp.default, torch.tensor([complex(-inf, 4), 2 - 5j, complex(inf, 1)]), 0)


def test_log_sums_of_infinities() -> None:
    check(A.logcumsumexp.default, torch.tensor([-inf, -inf, 1.0, inf, 2.0]), 0)
    check(A.logcumsumexp.default, torch.tensor([100.0, nan, 2.0]), 0)
    check(A.logcumsumexp.default, torch.tensor(2.0), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_log_sums_are_rounded_once(dtype: torch.dtype) -> None:
    check(A.logcumsumexp.default, (values(2, 300, dtype=dtype) - 1) * 30, 1, rtol=3e-7, atol=1e-6)
