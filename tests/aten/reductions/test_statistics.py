"""Variance, standard deviation and norms against torch's CPU."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("correction", [None, 0, 1, 2, 0.5, 7])
def test_corrections(correction: Any) -> None:
    """7 exceeds the 4 elements: a division by zero, not by a negative number."""
    x = values(3, 4)
    check(A.var.correction, x, [1], correction=correction)
    check(A.std.correction, x, [1], correction=correction, keepdim=True)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64], ids=str)
@pytest.mark.parametrize("op", ["var", "std", "var_mean", "std_mean"])
def test_every_dtype(op: str, dtype: torch.dtype) -> None:
    packet = getattr(A, op)
    check(packet.correction, values(3, 4, 5, dtype=dtype))
    check(packet.correction, values(3, 4, 5, dtype=dtype), [0, -1], correction=0, keepdim=True)


def test_older_overloads() -> None:
    check(A.var.default, values(3, 4), False)
    check(A.var.dim, values(3, 4), [0], True, True)


def test_large_values_do_not_cancel() -> None:
    check(A.var.correction, values(4, 1000) + 1000, [1], rtol=1e-4)


def test_few_elements() -> None:
    check(A.var.correction, values(3, 1), [1])
    check(A.var.correction, values(3, 1), [1], correction=0)
    check(A.var.correction, torch.tensor(2.0), correction=0)
    check(A.std.correction, torch.ones(0, 3), [0])
    check(A.var_mean.correction, torch.ones(3, 0), [1])
    check(A.var.correction, torch.ones(0, 3), [1])
    check(A.var.correction, torch.ones(0, 3), [0], correction=-2)
    check(A.std_mean.correction, torch.ones(3, 0), [1], correction=-1)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1, inf, -inf])
def test_orders_of_norms(order: float) -> None:
    check(A.linalg_vector_norm.default, values(3, 4), order)
    check(A.linalg_vector_norm.default, values(3, 4), order, [1], True)
    check(A.linalg_vector_norm.default, values(3, 4, dtype=torch.complex64), order, [0])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_of_every_dtype(dtype: torch.dtype) -> None:
    check(A.linalg_vector_norm.default, values(30, 40, dtype=dtype))
    check(A.linalg_vector_norm.default, values(3, 4, dtype=dtype), 1, [0])
    check(A.norm.ScalarOpt_dim, values(3, 4, dtype=dtype), 2, [1])


def test_norms_in_another_dtype() -> None:
    check(A.linalg_vector_norm.default, values(300, dtype=torch.bfloat16), dtype=torch.float32)
    check(A.linalg_vector_norm.default, values(3, 4), 2, dtype=torch.float64)


def test_norms_of_empty_tensors() -> None:
    check(A.linalg_vector_norm.default, torch.ones(0, 3), 2, [0])
    check(A.linalg_vector_norm.default, torch.ones(0), 0)
    check(A.linalg_vector_norm.default, torch.tensor(-3.0), 2)


def test_ops_decomposed_into_norms() -> None:
    check(A.norm.Scalar, values(3, 4), 3)
    check(A.dist.default, values(3, 4), torch.ones(4), 1)
    check(A.renorm.default, values(3, 4), 2, 0, 1.0)


@pytest.mark.parametrize("order", [300.0, -300.0, 2.5, 0.0])
def test_norms_of_single_numbers(order: float) -> None:
    x = torch.tensor([[0.25], [2.0], [-0.5], [0.0]])
    check(A.linalg_vector_norm.default, x, order, [1])
    check(A.linalg_vector_norm.default, x[:1].to(torch.complex64), order)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_sums_of_the_variance_are_wide(dtype: torch.dtype) -> None:
    """As on the CPU, the mean loses no digits, and equal numbers have no variance."""
    x = (torch.randn(97, 500, generator=torch.Generator().manual_seed(0)) * 9 + 0.05).to(dtype)
    x[:, 0] = 1.0 / 3
    variance, mean = (v.cpu() for v in torch.var_mean(x.to("tpu"), 0))
    exact = torch.var_mean(x.to(torch.promote_types(dtype, torch.float64)), 0)
    torch.testing.assert_close(variance.double(), exact[0], rtol=3e-7, atol=0)
    torch.testing.assert_close(mean.to(exact[1].dtype), exact[1], rtol=4e-7, atol=0)
    assert variance[0] == 0 and mean[0] == x[0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-30, 1e-15, 1.0, 1e15, 1e19, 1e30, 2e38])
def test_spread_of_numbers_whose_squares_leave_the_range(dtype: torch.dtype, size: float) -> None:
    """The CPU squares in float64. Where float32 holds the deviation or the variance, they are right."""
    torch.manual_seed(0)
    x = (torch.rand(5, 40) * size).to(dtype)
    least = torch.finfo(torch.float32).tiny  # smaller numbers are flushed
    for op in (torch.var, torch.std, torch.var_mean, torch.std_mean):
        pair = [op(x, 1), op(x.to("tpu"), 1)]
        expected, results = (result if isinstance(result, tuple) else (result,) for result in pair)
        for right, result in zip(expected, results, strict=True):
            rtol = 1e-2 if dtype is torch.bfloat16 else 2e-6
            torch.testing.assert_close(result.cpu(), right, atol=least, rtol=rtol)


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf, 0.0])
def test_spread_of_special_values(special: float) -> None:
    x = torch.tensor([[special, 1e30], [special, special], [1.0, 3.0]])
    for op in (torch.var_mean, torch.std_mean):
        for expected, result in zip(op(x, 1), op(x.to("tpu"), 1), strict=True):
            torch.testing.assert_close(result.cpu(), expected, equal_nan=True)
