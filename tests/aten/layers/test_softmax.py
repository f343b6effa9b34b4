"""Softmax, log_softmax and logsumexp against torch's CPU."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(shape, dtype=dtype) * 3


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_forward(dtype: torch.dtype, dim: int) -> None:
    check(A._softmax.default, values(3, 4, 5, dtype=dtype), dim, False)
    # Along the last dim the CPU rounds max and log Σ to the half dtype, so it is off by an ulp of their size.
    loose = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype)
    check(A._log_softmax.default, values(3, 4, 5, dtype=dtype), dim, False, atol=loose)
    check(A._safe_softmax.default, values(3, 4, 5, dtype=dtype), dim)
    check(A.logsumexp.default, values(3, 4, 5, dtype=dtype), [dim])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_backward(dtype: torch.dtype, dim: int) -> None:
    x, g = values(3, 4, 5, dtype=dtype), values(3, 4, 5, dtype=dtype).flip(0)
    check(A._softmax_backward_data.default, g, x.softmax(dim), dim, dtype)
    check(A._log_softmax_backward_data.default, g, x.log_softmax(dim), dim, dtype)


def test_large_and_infinite() -> None:
    x = torch.tensor([[1e4, 0.0, -1e4], [inf, 0.0, 1.0], [-inf, 0.0, 1.0], [-inf, -inf, -inf], [nan, 0.0, 1.0]])
    check(A._softmax.default, x, 1, False)
    check(A._log_softmax.default, x, 1, False)
    check(A._safe_softmax.default, x, 1)
    check(A.logsumexp.default, x, [1])


def test_scalars_and_empty() -> None:
    check(A._softmax.default, torch.tensor(2.0), 0, False)
    check(A._log_softmax.default, torch.tensor(2.0), -1, False)
    check(A._log_softmax_backward_data.default, torch.tensor(2.0), torch.tensor(0.0), -1, torch.float32)
    check(A.logsumexp.default, torch.tensor(2.0), [0])
    check(A._softmax.default, torch.ones(3, 0), 1, False)
    check(A._log_softmax.default, torch.ones(0, 3), 1, False)
    check(A.logsumexp.default, torch.ones(3, 0), [1])


def test_logsumexp_of_other_dims_and_dtypes() -> None:
    check(A.logsumexp.default, values(3, 4, 5), [0, -1], True)
    check(A.logsumexp.default, torch.arange(6).view(2, 3), [1])
