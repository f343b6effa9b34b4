"""Sorting and searching against torch's CPU."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return (torch.randn(shape) * 4).to(dtype)


SPECIAL = torch.tensor([[0.0, nan, -inf, -0.0, 1.0, inf, 0.0, -nan], [nan, 3.0, nan, 3.0, -0.0, 0.0, -1.0, inf]])


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool], ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_sort(dtype: torch.dtype, descending: bool) -> None:
    """Ties keep their order, so the indices are the CPU's."""
    check(A.sort.stable, values(4, 9, dtype=dtype), stable=True, dim=1, descending=descending)
    check(A.sort.stable, values(9, 4, dtype=dtype), stable=True, dim=0, descending=descending)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_of_special_numbers(dtype: torch.dtype, descending: bool) -> None:
    x = SPECIAL.to(dtype)
    check(A.sort.stable, x, stable=True, dim=1, descending=descending)
    expected = A.sort.stable(x, stable=True, dim=1, descending=descending)
    result = run(A.sort.stable, x, stable=True, dim=1, descending=descending, outs=list(expected))
    number = ~expected[0].isnan()
    assert torch.equal(result[0][number].signbit(), expected[0][number].signbit())


def test_extreme_integers() -> None:
    for dtype in INTS:
        limits = torch.iinfo(dtype)
        x = torch.tensor([3, limits.max, limits.min, 0, limits.max - 1], dtype=dtype)
        check(A.sort.default, x)
        check(A.sort.default, x, 0, True)


def test_small_sorts() -> None:
    check(A.sort.default, torch.tensor(3.0))
    check(A.sort.default, torch.ones(0))
    check(A.sort.default, torch.ones(3, 0), 0)
    check(A.sort.default, values(3, 4, 5), 1)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_topk(dtype: torch.dtype, largest: bool) -> None:
    torch.manual_seed(0)
    x = torch.stack([torch.randperm(40) for _ in range(3)]).to(dtype)  # no ties: their order is the CPU's own
    check(A.topk.default, x, 3, 1, largest)
    check(A.topk.default, x.t().contiguous(), 2, 0, largest)
    check(A.topk.default, x, 30, -1, largest)


@pytest.mark.parametrize("largest", [True, False])
def test_topk_of_special_numbers(largest: bool) -> None:
    x = torch.cat([torch.tensor([nan, inf, -nan, -inf]), torch.arange(60.0)])
    for k in (1, 4, 60):
        expected = A.topk.default(x, k, -1, largest)
        result = run(A.topk.default, x, k, -1, largest, outs=list(expected))
        torch.testing.assert_close(result[0], expected[0], equal_nan=True)
        torch.testing.assert_close(x[result[1]], expected[0], equal_nan=True)


def test_small_topk() -> None:
    check(A.topk.default, torch.tensor(3.0), 1)
    check(A.topk.default, torch.tensor(3.0), 0)
    check(A.topk.default, torch.ones(0, 3), 1, 1)
    check(A.topk.default, values(3), 0)


def distinct(*shape: int) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    size = int(torch.tensor(shape).prod())
    return torch.randperm(size).view(shape).float()


@pytest.mark.parametrize("keepdim", [False, True])
def test_kthvalue_and_median(keepdim: bool) -> None:
    x = distinct(4, 5, 6)
    for dim in (0, 1, -1):
        check(A.kthvalue.default, x, 3, dim, keepdim)
        check(A.median.dim, x, dim, keepdim)
        check(A.nanmedian.dim, x, dim, keepdim)
    check(A.median.default, x)


def test_median_and_nan() -> None:
    x = distinct(5, 8)
    x[0, 3] = x[0, 5] = x[1, 2] = nan
    check(A.median.dim, x, 1)
    check(A.nanmedian.dim, x, 1)
    check(A.median.default, x)
    check(A.nanmedian.default, x)
    check(A.nanmedian.default, torch.tensor([nan, nan]))


def test_medians_of_few() -> None:
    for x in (torch.tensor(3.0), torch.tensor([7, 2, 5, 9])):
        check(A.median.default, x)
        check(A.nanmedian.default, x)
        check(A.median.dim, x, 0)
        check(A.kthvalue.default, x, 1)
    check(A.median.default, torch.ones(0))
    check(A.median.default, torch.ones(0, dtype=torch.int64))


def test_mode() -> None:
    x = torch.tensor([[1, 3, 3, 1, 2, 9], [4, 4, 4, 0, 0, 0], [5, 1, 4, 2, 3, 0]])
    for y in (x, x.float(), x.bfloat16()):
        expected = A.mode.default(y, 1)
        result = run(A.mode.default, y, 1, outs=list(expected))
        assert torch.equal(result[0], expected[0])
        assert torch.equal(y.gather(1, result[1][:, None])[:, 0], expected[0])
    check(A.mode.default, torch.tensor([[2], [5]]), 1, True)
    check(A.mode.default, torch.tensor(3.0))


@pytest.mark.parametrize("length", [5, 100])
@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(length: int, right: bool) -> None:
    row = (values(length) * 2).round().sort().values
    rows = torch.stack([row, row + 1])
    wanted = torch.cat([(values(2, 6) * 2).round(), torch.tensor([[nan, inf, -inf]] * 2)], 1)
    check(A.searchsorted.Tensor, row, wanted, right=right)
    check(A.searchsorted.Tensor, rows, wanted, right=right, out_int32=True)
    check(A.searchsorted.Scalar, row, 1.5, right=right)
    check(A.bucketize.Tensor, wanted, row, right=right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_of_nan(dtype: torch.dtype, right: bool) -> None:
    """Values that are NaN, and rows that end in NaN, where torch's order of comparisons decides."""
    wanted = torch.tensor([nan, 2, inf, -inf, 5], dtype=dtype)
    for length, nans in ((3, 1), (5, 4), (2, 2), (70, 20)):
        row = torch.tensor([1.0 + i for i in range(length - nans)] + [nan] * nans, dtype=dtype)
        check(A.searchsorted.Tensor, row, wanted, right=right)
        check(A.bucketize.Tensor, wanted, row, right=right)
        check(A.searchsorted.Tensor, row, wanted, right=right, sorter=torch.arange(length))
        check(A.searchsorted.Tensor, torch.stack([row, row.flip(0)]), torch.stack([wanted, wanted]), right=right)


def test_searchsorted_elsewhere() -> None:
    row = torch.tensor([5, 1, 3])
    check(A.searchsorted.Tensor, row, torch.tensor([3, 4]), sorter=torch.tensor([1, 2, 0]), side="right")
    check(A.searchsorted.Tensor, row.sort().values, torch.tensor(3))
    check(A.searchsorted.Tensor, torch.ones(0), torch.tensor([3.0]))


def test_isin() -> None:
    arguments: Any = (torch.tensor([[1, 2], [3, 4]]), torch.tensor([2, 4, 9]))
    check(A.isin.Tensor_Tensor, *arguments)
    check(A.isin.Tensor_Tensor, *arguments, invert=True)


def test_rows_in_lexicographic_order() -> None:
    """Stable, by the first column, then the second."""
    import lazytpu.frontend.ops.counting  # noqa: F401  (defines the op)

    order = torch.ops.lazytpu.lexicographic_order.default
    for dtype in (torch.int64, torch.bool, torch.bfloat16):
        rows = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 0, 0], [0, 1, 1], [0, 0, 1]]).to(dtype)
        (got,) = run(order, rows, outs=[torch.empty(5, dtype=torch.int64)])
        assert got.tolist() == sorted(range(5), key=lambda i: rows[i].tolist())
    (got,) = run(order, torch.zeros(3, 0), outs=[torch.empty(3, dtype=torch.int64)])
    assert got.tolist() == [0, 1, 2]


def test_sorter_out_of_range_is_an_error() -> None:
    row, outs = torch.arange(3.0), [torch.empty(3, dtype=torch.int64)]
    with pytest.raises(IndexError, match="sorter"):
        run(A.searchsorted.Tensor, row, row, sorter=torch.tensor([0, 1, 3]), outs=outs)
