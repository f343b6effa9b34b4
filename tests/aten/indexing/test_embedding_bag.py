"""Bags of embeddings against torch's CPU."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

import lazytpu
from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
SUM, MEAN, MAX = 0, 1, 2
INDICES, OFFSETS = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4, 4])


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("mode", [MEAN, MAX])
@pytest.mark.parametrize("padding", [-1, 4])
@pytest.mark.parametrize("last", [False, True])
def test_modes(mode: int, padding: int, last: bool) -> None:
    offsets = torch.tensor([0, 4, 4, 8]) if last else OFFSETS
    check(A._embedding_bag.default, values(10, 3), INDICES, offsets, False, mode, False, None, last, padding)


def test_later_rows_replace_the_first_where_they_are_greater() -> None:
    """NaN and the zeros stay where they come first; 7 is ignored."""
    nan, inf = torch.nan, torch.inf
    rows = [[nan, 1, -0.0], [2, nan, 0], [3, 5, -1], [-inf, -inf, -inf], [nan, nan, nan], *[[9, 9, 9]] * 5]
    table = torch.tensor(rows)
    indices = torch.tensor([0, 1, 2, 1, 0, 2, 0, 3, 4, 4, 3, 7, 3, 7, 1, 0, 7])
    op = A._embedding_bag.default
    check(op, table, indices, torch.tensor([0, 3, 5, 7, 9, 11, 13, 16]), False, MAX, False, None, False, 7)


@pytest.mark.parametrize("weighted", [False, True])
def test_sum(weighted: bool) -> None:
    weights = values(8) if weighted else None
    op = A._embedding_bag.default
    for padding in (-1, 2):
        check(op, values(10, 3), INDICES, OFFSETS, False, SUM, False, weights, False, padding)
    check(op, values(10, 3), torch.ones(0, dtype=torch.int64), torch.tensor([0, 0]), False, SUM)


@pytest.mark.parametrize(
    "dtype", [torch.float32, *(pytest.param(d, marks=pytest.mark.long) for d in (torch.float64, torch.bfloat16))]
)
@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
@pytest.mark.parametrize("last", [False, True])
def test_results_of_the_function_called_by_name(mode: int, dtype: torch.dtype, last: bool) -> None:
    """All four results, with and without a gradient, and indices and offsets of two dtypes."""
    offsets = torch.tensor([0, 4, 4, 8], dtype=torch.int32) if last else OFFSETS.int()
    table = values(10, 3, dtype=dtype)
    for step, padding in product((None, 1, 2) if mode == SUM else (None,), (None, 4)):  # None has no weights
        for grad, indices in product((False, True), (INDICES, INDICES.int())):
            results: list[Any] = []
            for device in ("cpu", "tpu"):
                moved = [x.to(device) for x in (table, indices, offsets)]
                moved[0] = moved[0].detach().requires_grad_(grad)
                weights = step and values(16, dtype=dtype).to(device)[: 8 * step : step]
                results.append(A.embedding_bag.padding_idx(*moved, False, mode, False, weights, last, padding))
            for expected, result in zip(*results, strict=True):
                assert (expected.shape, expected.dtype) == (result.shape, result.dtype)
                torch.testing.assert_close(result.detach().cpu(), expected.detach())


def saved(mode: int, padding: int, weights: torch.Tensor | None = None) -> Any:
    results = A._embedding_bag.default(values(10, 3), INDICES, OFFSETS, False, mode, False, weights, False, padding)
    return torch.tensor([0, 0, 0, 0, 2, 2, 2, 2]), results[2], results[3]


@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
@pytest.mark.parametrize("padding", [-1, 4])
def test_gradient_of_the_table(mode: int, padding: int) -> None:
    rest = (10, False, mode, values(8) if mode == SUM else None, padding)
    check(A._embedding_bag_dense_backward.default, values(3, 3), INDICES, *saved(mode, padding), *rest)


def test_gradient_by_frequency() -> None:
    """Each row's gradient is divided by how often the row is used. (The CPU looks the number up at the wrong index.)"""
    grad, member = values(3, 3), saved(SUM, -1)[0]
    arguments = (grad, INDICES, *saved(SUM, -1), 10, True, SUM, None, -1)
    results = run(A._embedding_bag_dense_backward.default, *arguments, outs=[torch.empty(10, 3)])
    expected = A.embedding_dense_backward.default(grad[member], INDICES, 10, -1, True)
    torch.testing.assert_close(results[0], expected)


def test_gradient_of_the_weights() -> None:
    member = saved(SUM, -1)[0]
    op = A._embedding_bag_per_sample_weights_backward.default
    for padding in (-1, 4):
        check(op, values(3, 3), values(10, 3), INDICES, OFFSETS, member, SUM, padding)


@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
def test_gradient_without_the_bag_of_each_index(mode: int) -> None:
    member, sizes, maxima = saved(mode, -1)
    arguments = (values(3, 3), INDICES, OFFSETS, member[:0], sizes, maxima, 10, False, mode, False, None, -1)
    results = run(A._embedding_bag_backward.default, *arguments, outs=[torch.empty(10, 3)])
    op = A._embedding_bag_dense_backward.default
    expected = op(values(3, 3), INDICES, member, sizes, maxima, 10, False, mode, None, -1)
    torch.testing.assert_close(results[0], expected)


@pytest.mark.parametrize("offsets", [[1, 2], [0, 4]])
def test_offsets_that_do_not_fit(offsets: list[int]) -> None:
    """The first bag starts at 0, the last one within the indices."""
    table, rows = torch.randn(4, 2), torch.tensor([0, 1, 2])
    op = A._embedding_bag.default
    outs = list(op(table, rows, torch.tensor([0, 2])))
    with pytest.raises(IndexError, match="offsets"):
        run(op, table, rows, torch.tensor(offsets), outs=outs)


@pytest.mark.parametrize("row", [-1, 4])
@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
def test_rows_out_of_range(mode: int, row: int) -> None:
    """The message equals the CPU's for ignored rows, since its kernel checks every row."""
    arguments = torch.randn(4, 2), torch.tensor([0, row]), torch.tensor([0])
    with pytest.raises(RuntimeError, match="Expected idx >= 0 && idx < num_embeddings") as known:
        A._embedding_bag.default(*arguments, False, mode, False, None, False, 0)
    with lazytpu.mode("debug"), pytest.raises(RuntimeError) as raised:
        A._embedding_bag.default(*(x.to("tpu") for x in arguments), False, mode, False, None, False, 0)
    assert str(raised.value).partition(" (")[0] == str(known.value).partition(" but found")[0]


def test_gradient_of_half_precision_is_rounded_once() -> None:
    """400 gradients of one row: a sum in bfloat16 would end at 256 times their size."""
    gradient = torch.ops.aten._embedding_bag_dense_backward(
        torch.ones(1, 2, dtype=torch.bfloat16, device="tpu"),
        *[torch.zeros(400, dtype=torch.int64, device="tpu")] * 2,
        *[torch.full((1,), 400, device="tpu")] * 2,
        3,
        False,
        0,
        None,
    )
    assert gradient.dtype == torch.bfloat16 and gradient.cpu()[0].tolist() == [400, 400]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weighted_bags_of_half_precision_are_rounded_once(dtype: torch.dtype) -> None:
    """Sums, both gradients, and their dot products: within half an ulp of float64, and of float32's error."""
    table, weights = values(50, 8, dtype=dtype) * 5, values(64, dtype=dtype)
    rows, offsets, cotangent = torch.arange(64) * 7 % 50, torch.tensor([0, 1, 1, 20, 30]), values(5, 8, dtype=dtype)
    results: list[list[torch.Tensor]] = []
    for device, computed in (("cpu", torch.float64), ("tpu", dtype)):
        leaves = [x.to(device, computed).requires_grad_() for x in (table, weights)]
        places = [x.to(device) for x in (rows, offsets)]
        bags = A.embedding_bag.default(leaves[0], *places, False, SUM, False, leaves[1])[0]
        gradients = torch.autograd.grad(bags, leaves, cotangent.to(device, computed))
        results.append([x.detach().cpu() for x in (bags, *gradients)])
    for exact, result in zip(*results, strict=True):
        ulp = torch.finfo(dtype).eps * torch.exp2(exact.abs().clamp_min(1e-3).log2().floor())
        assert ((result.double() - exact).abs() <= 0.5 * ulp + 1e-5).all()
