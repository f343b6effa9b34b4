"""Weight normalization and its gradients."""

from __future__ import annotations

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(dim)
    v, grad = torch.randn(3, 4, 5, dtype=dtype), torch.randn(3, 4, 5, dtype=dtype)
    g = torch.rand([3, 1, 1] if dim == 0 else [1, 1, 5]).to(dtype)
    check(A._weight_norm_interface.default, v, g, dim)
    _, norms = A._weight_norm_interface.default(v, g, dim)
    check(A._weight_norm_interface_backward.default, grad, v, g, norms, dim)
