"""hash_tensor, bit by bit."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch

from tests.aten.harness import run
from tests.aten.samples import ALL, sample

hash_tensor = torch.ops.aten.hash_tensor.default


def check_bits(x: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    want = hash_tensor(x, *args, **kwargs)
    (got,) = run(hash_tensor, x, *args, outs=[want], **kwargs)
    assert got.dtype is torch.uint64 and got.tolist() == want.tolist()


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_complex], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    check_bits(sample(dtype).reshape(-1, 1), 1)


def test_tiny_numbers() -> None:
    """Subnormal numbers are not flushed to zero."""
    tiny = torch.tensor([1e-40, -3e-45, 1.2e-38, inf, -inf, nan, -0.0])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        check_bits((tiny if dtype is not torch.float16 else torch.tensor([6e-8, -5e-5, 1.0])).to(dtype).unsqueeze(1), 1)


def test_dims() -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    for dims in ([], [1], [0, 2], [-1]):
        check_bits(x, dims)
        check_bits(x, dims, keepdim=True)
    check_bits(torch.tensor(3.0), [])
    check_bits(torch.ones(0, 3), [1])
