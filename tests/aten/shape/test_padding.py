"""Padding by constants, reflection, replication, with backward, against torch's CPU."""

from __future__ import annotations

from math import inf

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
PADS = {1: [[2, 1], [0, 3], [-1, 2], [3, -2]], 2: [[1, 2, 2, 0], [-1, 1, 2, -1]], 3: [[1, 2, 0, 1, 2, 1]]}


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(0, 9, shape).to(dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str)
def test_constant(dtype: torch.dtype) -> None:
    x = values(2, 3, 4).to(dtype)
    for pad in ([1, 2], [0, 0, 3, 1], [-1, 2, 1, -1, 0, 1], [-2, -2], []):
        check(A.constant_pad_nd.default, x, pad, 1)
    check(A.constant_pad_nd.default, x, [1, 0])


def test_constant_values() -> None:
    check(A.constant_pad_nd.default, values(2, 3), [1, 1], -inf)
    check(A.constant_pad_nd.default, values(2, 3, dtype=torch.int64), [1, 1], 2.7)
    check(A.constant_pad_nd.default, torch.ones(0, 3), [1, 1, 1, 1], 2.5)
    check(A.constant_pad_nd.default, torch.tensor(1.0), [], 2.5)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_edges(dtype: torch.dtype, rank: int) -> None:
    x = values(2, 3, *[5, 4, 6][:rank]).to(dtype)
    for pad in PADS[rank]:
        check(getattr(A, f"replication_pad{rank}d").default, x, pad)
        check(getattr(A, f"reflection_pad{rank}d").default, x, pad)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_backward(dtype: torch.dtype, rank: int) -> None:
    x = values(2, 3, *[5, 4, 6][:rank], dtype=dtype)
    for pad in PADS[rank]:
        for mode in ("replication", "reflection"):
            grad = values(*getattr(A, f"{mode}_pad{rank}d").default(x, pad).shape, dtype=dtype)
            tolerance = {} if dtype in (torch.float32, torch.float64) else {"rtol": 0.03, "atol": 0.05}
            check(getattr(A, f"{mode}_pad{rank}d_backward").default, grad, x, pad, **tolerance)


def test_unbatched() -> None:
    check(A.reflection_pad1d.default, values(3, 5), [2, 2])
    check(A.replication_pad2d.default, values(3, 5, 4), [2, 0, 1, 1])
    grad = values(3, 5, 8)
    check(A.reflection_pad2d_backward.default, grad, values(3, 3, 6), [1, 1, 1, 1])
    check(A.replication_pad1d.default, values(0, 3, 5), [1, 2])
