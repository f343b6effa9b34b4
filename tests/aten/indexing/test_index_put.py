"""Assignment at indices and masks against torch's CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return (torch.randn(shape) * 4).to(dtype)


ROWS, COLUMNS = torch.tensor([2, 0, -2]), torch.tensor([1, 3, 0])
EXPRESSIONS: list[Any] = [
    [ROWS],
    [None, COLUMNS],
    [ROWS, COLUMNS],
    [ROWS, None, COLUMNS],
    [None, ROWS, COLUMNS],
    [ROWS[:, None], None, COLUMNS[:2]],
    [torch.tensor(1), None, torch.tensor(2)],
    [torch.ones(0, dtype=torch.int64)],
]


@pytest.mark.parametrize("indices", EXPRESSIONS, ids=range(len(EXPRESSIONS)))
@pytest.mark.parametrize("accumulate", [False, True])
def test_index_expressions(indices: Any, accumulate: bool) -> None:
    x = values(3, 4, 5)
    shape = x[tuple(slice(None) if i is None else i for i in indices)].shape
    check(A.index_put.default, x, indices, values(*shape), accumulate)
    check(A._unsafe_index_put.default, x, indices, torch.tensor(2.5), accumulate)


def test_values_are_broadcast() -> None:
    x = values(3, 4, 5)
    check(A.index_put.default, x, [None, COLUMNS], values(3, 5))
    check(A.index_put.default, x, [ROWS, None, COLUMNS], values(4))
    check(A.index_put.default, x, [ROWS], torch.tensor(2.5), True)


def test_repeated_indices_accumulate() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
        where = torch.tensor([1, 1, 0, 1])
        check(A.index_put.default, values(3, 4, dtype=dtype), [where], values(4, 4, dtype=dtype), True)
        check(A._index_put_impl.default, values(3, dtype=dtype), [where], values(4, dtype=dtype), True)


MASKS = {
    "rows": (lambda x: x[:, 0, 0] > x[:, 0, 0].min(), 0),
    "matrix": (lambda x: x[:, :, 0] > 0, 0),
    "last": (lambda x: x[0] > 0, 1),
    "all": (lambda x: x > 0, 0),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("accumulate", [False, True])
def test_masks(name: str, accumulate: bool) -> None:
    x = values(3, 4, 5)
    mask, dim = MASKS[name][0](x), MASKS[name][1]
    selected = x[(slice(None),) * dim + (mask.bool(),)]
    assert selected.numel() > 1
    for source in (torch.tensor(2.5), values(*selected.shape), values(*selected.shape[1:])):
        if name == "last" and source.ndim == 1:  # a vector lies along the selected elements, the last dim
            source = values(selected.shape[-1])
        check(A.index_put.default, x, [None] * dim + [mask], source, accumulate)


def test_masks_of_nothing() -> None:
    x = values(3, 4)
    check(A.index_put.default, x, [x > 99], torch.tensor(1.0))
    check(A.index_put.default, x, [x > 99], torch.ones(0))
    check(A.index_put.default, torch.ones(0, 4), [torch.ones(0, dtype=torch.bool)], torch.tensor(1.0))


def test_mask_must_select_as_many_elements_as_values() -> None:
    x = values(3, 4)
    with pytest.raises(IndexError, match="shape mismatch"):
        run(A.index_put.default, x, [x > 0], torch.ones(5), outs=[x])


def test_mask_with_other_indices_has_a_hint() -> None:
    x = values(3, 4)
    with pytest.raises(NotImplementedError, match="mask"):
        run(A.index_put.default, x, [x[:, 0] > 0, torch.tensor(0)], torch.tensor(1.0), outs=[x])


def test_values_of_another_dtype_are_converted() -> None:
    x = values(3, 4)
    result = run(A.index_put.default, x, [torch.tensor([1])], torch.tensor(2, dtype=torch.int64), outs=[x])
    assert torch.equal(result[0][1], torch.full((4,), 2.0))


def test_masked_scatter() -> None:
    x = values(3, 4)
    check(A.masked_scatter.default, x, x > 0, values(3, 4))
    check(A.masked_scatter.default, x, x[:1] > 0, values(40))
    check(A.masked_scatter.default, x, x > 99, torch.ones(0))
    with pytest.raises(IndexError, match="Number of elements of source < number of ones in mask"):
        run(A.masked_scatter.default, x, x > -99, torch.ones(5), outs=[x])


def test_masked_scatter_backward() -> None:
    """The CPU's own kernel is a composite: the gradient of `source`."""
    x, source = values(3, 4), values(20).requires_grad_()
    mask = x > 0
    torch.masked_scatter(x, mask, source).backward(values(4, 3).t())
    results = run(A.masked_scatter_backward.default, values(4, 3).t().contiguous(), mask, [20], outs=[source])
    torch.testing.assert_close(results[0], source.grad)
