"""Sums, means, extremes and logical reductions against torch's CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
COMPLEX = [torch.complex64, torch.complex128]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(len(shape))
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 9, shape).to(dtype)


def with_nan(*shape: int) -> torch.Tensor:
    x = values(*shape)
    x.view(-1)[::5] = float("nan")
    return x


DIMS: list[Any] = [None, [], [0], [-1], [0, 2], [1, -1, 0]]


@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_dims_of_sum_and_mean(dim: Any, keepdim: bool) -> None:
    check(A.sum.dim_IntList, values(3, 4, 5), dim, keepdim)
    check(A.mean.dim, values(3, 4, 5), dim, keepdim)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, *COMPLEX], ids=str)
def test_sum_of_every_dtype(dtype: torch.dtype) -> None:
    check(A.sum.default, values(3, 4, dtype=dtype))
    check(A.sum.dim_IntList, values(3, 4, dtype=dtype), [1])


@pytest.mark.parametrize("to", [torch.float32, torch.float64, torch.int32, torch.int64, torch.bool], ids=str)
def test_sum_and_prod_convert_first(to: torch.dtype) -> None:
    check(A.sum.default, values(3, 4) * 3, dtype=to)
    check(A.sum.dim_IntList, values(3, 4, dtype=torch.int64), [0], dtype=to)
    check(A.prod.dim_int, values(3, 4, dtype=torch.int64), 1, dtype=to)


def test_halves_are_accumulated_wide() -> None:
    ones = torch.ones(5000, dtype=torch.bfloat16)
    check(A.sum.default, ones)
    check(A.mean.default, ones * 3)
    check(A.sum.default, torch.ones(5000, dtype=torch.float16), dtype=torch.float32)


def test_empty_sets() -> None:
    for shape in ((0,), (0, 3), (3, 0)):
        check(A.sum.default, torch.ones(shape))
        check(A.sum.dim_IntList, torch.ones(shape), [-1])
        check(A.mean.dim, torch.ones(shape), [0])
        check(A.prod.default, torch.ones(shape))
        check(A.any.default, torch.ones(shape))
        check(A.all.default, torch.ones(shape))
    check(A.amax.default, torch.ones(0, 3), [1])


def test_scalars() -> None:
    x = torch.tensor(2.5)
    for dim in ([0], [-1], []):
        check(A.sum.dim_IntList, x, dim)
        check(A.mean.dim, x, dim)
        check(A.amax.default, x, dim)
    check(A.max.dim, x, 0)
    check(A.argmin.default, x, -1)
    check(A.argmax.default, x)
    check(A.any.dim, x, -1)
    check(A.aminmax.default, x, dim=0)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64], ids=str)
def test_mean_of_every_dtype(dtype: torch.dtype) -> None:
    check(A.mean.default, values(3, 4, dtype=dtype))
    check(A.mean.dim, values(3, 4, dtype=dtype), [0], True)


def test_mean_in_another_dtype() -> None:
    check(A.mean.default, values(3, 4, dtype=torch.int64), dtype=torch.float32)
    check(A.mean.dim, values(3, 4), [0], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.complex64], ids=str)
def test_prod_of_every_dtype(dtype: torch.dtype) -> None:
    check(A.prod.default, values(2, 3, dtype=dtype))
    check(A.prod.dim_int, values(2, 3, dtype=dtype), -1, True)


@pytest.mark.parametrize("op", ["any", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, *INTS], ids=str)
def test_logical(op: str, dtype: torch.dtype) -> None:
    packet, x = getattr(A, op), values(4, 3, dtype=dtype)
    x[0] = 0
    x[1] = 1
    check(packet.default, x)
    check(packet.dim, x, 1, True)
    for dim in (None, [], [0], [0, -1]):
        check(packet.dims, x, dim)


def test_nan_is_true() -> None:
    check(A.any.default, torch.tensor([0.0, float("nan")]))
    check(A.all.default, torch.tensor([1.0, float("nan")]))
    check(A.count_nonzero.default, torch.tensor([0.0, float("nan"), 2.0]))


def test_count_nonzero() -> None:
    x = values(3, 4, dtype=torch.int32) % 2
    check(A.count_nonzero.default, x)
    check(A.count_nonzero.default, x, 1)
    check(A.count_nonzero.dim_IntList, x, [0, -1])


def test_nansum() -> None:
    check(A.nansum.default, with_nan(3, 4))
    check(A.nansum.default, with_nan(3, 4), [1], True)
    check(A.nansum.default, values(3, 4, dtype=torch.int32), [0])


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_extremes_of_every_dtype(dtype: torch.dtype) -> None:
    x = values(4, 5, dtype=dtype)
    for op in (A.amax.default, A.amin.default):
        check(op, x)
        check(op, x, [1], True)
    check(A.max.default, x)
    check(A.min.default, x)
    check(A.max.dim, x, 0)
    check(A.min.dim, x, -1, True)
    check(A.aminmax.default, x)
    check(A.aminmax.default, x, dim=1, keepdim=True)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS[:-1]], ids=str)
def test_indices_of_every_dtype(dtype: torch.dtype) -> None:
    x = values(4, 5, dtype=dtype)
    for op in (A.argmax.default, A.argmin.default):
        check(op, x)
        check(op, x, None, True)
        check(op, x, 0)
        check(op, x, -1, True)


def test_the_first_of_equals_wins_and_nan_beats_all() -> None:
    ties = torch.tensor([[1, 3, 3, 0, 0], [2, 2, 2, 2, 2]])
    for op in (A.max.dim, A.min.dim):
        check(op, ties, 1)
        check(op, with_nan(5, 6), 1)
        check(op, with_nan(5, 6), 0, True)
    for op in (A.argmax.default, A.argmin.default):
        check(op, ties, 1)
        check(op, with_nan(5, 6), 1)
        check(op, with_nan(5, 6))
    for op in (A.amax.default, A.amin.default, A.max.default, A.min.default):
        check(op, with_nan(5, 6))
    check(A.amax.default, with_nan(5, 6), [0])


def test_infinities() -> None:
    x = torch.tensor([[float("-inf"), float("-inf")], [float("inf"), 1.0]])
    check(A.amax.default, x, [1])
    check(A.max.dim, x, 1)
    check(A.min.dim, x, 1)
    check(A.sum.dim_IntList, x, [1])
