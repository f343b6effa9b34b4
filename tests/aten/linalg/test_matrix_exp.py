"""The matrix exponential: small, large, nilpotent and empty matrices."""

from __future__ import annotations

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

OP = torch.ops.aten.linalg_matrix_exp.default


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
def test_values(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    sizes = torch.tensor([1e-3, 0.1, 1.0, 8.0])[:, None, None]  # each needs another number of squarings
    check(OP, sizes * torch.randn(4, 5, 5, dtype=dtype), rtol=2e-4, atol=1e-5)


def test_exact_ones() -> None:
    check(OP, torch.zeros(2, 3, 3))
    check(OP, torch.diag(torch.ones(3), 1))
    check(OP, torch.tensor([[2.0]]))
    check(OP, torch.empty(2, 0, 0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_floats_are_computed_in_f32(dtype: torch.dtype) -> None:
    # torch 2.13 on the CPU gives garbage here (infinities and NaN for matrices of norm 1).
    x = (torch.arange(9.0).reshape(3, 3) / 8).to(dtype)
    (got,) = run(OP, x, outs=[x])
    torch.testing.assert_close(got, OP(x.float()).to(dtype))
