"""Reading at computed indices against torch's CPU, and the checks of their bounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return (torch.randn(shape) * 4).to(dtype)


def index(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    x = values(3, 4, dtype=dtype)
    check(A.index_select.default, x, 1, index(3, 0, 3))
    check(A.gather.default, x, 0, torch.tensor([[2, 0, 1]]))
    check(A.index.Tensor, x, [index(-1, 0)])
    check(A.take.default, x, torch.tensor([[11, -12], [0, 5]]))


@pytest.mark.parametrize("kind", [torch.int64, torch.int32], ids=str)
def test_index_select(kind: torch.dtype) -> None:
    for dim in (0, 1, -1):
        check(A.index_select.default, values(3, 4, 5), dim, index(2, 0, 2).to(kind))
    check(A.index_select.default, values(3, 4), 0, torch.tensor(1, dtype=kind))
    check(A.index_select.default, torch.tensor(7.0), 0, torch.tensor([0], dtype=kind))
    check(A.index_select.default, values(3, 4), 0, torch.ones(0, dtype=kind))
    check(A.index_select.default, values(3, 0), 0, index(1, 1).to(kind))


def test_gather() -> None:
    x = values(3, 4, 5)
    for dim in (0, 1, -1):
        check(A.gather.default, x, dim, torch.randint(0, 3, (3, 4, 5)))
        check(A.gather.default, x, dim, torch.randint(0, 3, (2, 3, 1)))
    check(A.gather.default, x, 1, torch.randint(0, 4, (3, 9, 5)))
    check(A.gather.default, torch.tensor(7.0), 0, index(0, 0))
    check(A.gather.default, values(3), 0, torch.tensor(2))
    check(A.gather.default, x, 1, torch.ones(3, 0, 5, dtype=torch.int64))


ROWS, COLUMNS = index(2, 0, -1), index(1, 3, 0)
EXPRESSIONS: list[Any] = [
    [ROWS],
    [None, COLUMNS],
    [None, None, COLUMNS],
    [ROWS, COLUMNS],
    [None, ROWS, COLUMNS],
    [ROWS, None, COLUMNS],
    [ROWS[:, None], COLUMNS],
    [ROWS[:, None], None, COLUMNS],
    [ROWS.view(3, 1), COLUMNS.view(1, 3), torch.tensor(1)],
    [torch.tensor(1), None, torch.tensor(2)],
    [None, torch.tensor(-1)],
    [torch.ones(0, dtype=torch.int64)],
    [ROWS.int(), COLUMNS.int()],
]


@pytest.mark.parametrize("indices", EXPRESSIONS, ids=range(len(EXPRESSIONS)))
def test_index_expressions(indices: Any) -> None:
    check(A.index.Tensor, values(3, 4, 5), indices)
    check(A._unsafe_index.Tensor, values(3, 4, 5), indices)


def test_empty_tensors() -> None:
    check(A.index.Tensor, torch.ones(0, 4), [None, index(1, 2)])
    check(A.index.Tensor, torch.ones(3, 0), [index(1, 2)])


@pytest.mark.parametrize(
    ("op", "arguments", "message"),
    [
        (A.index_select.default, (values(3, 4), 0, index(0, 3)), "index out of range in self"),
        (A.index_select.default, (values(3, 4), 0, index(-1, 0)), "index out of range in self"),
        (A.gather.default, (values(3, 4), 1, torch.tensor([[4, 0]])), "out of bounds for dimension 1 with size 4"),
        (A.gather.default, (values(3, 4), 1, torch.tensor([[-1, 0]])), "out of bounds for dimension 1 with size 4"),
        (A.index.Tensor, (values(3, 4), [index(3, 0)]), "out of bounds for dimension 0 with size 3"),
        (A.index.Tensor, (values(3, 4), [None, index(-5, 0)]), "out of bounds for dimension 1 with size 4"),
        (A.take.default, (values(3, 4), index(12, 0)), "out of range: tried to access"),
    ],
)
def test_out_of_range(op: Any, arguments: Any, message: str) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        op(*arguments)
    good = [a.clone().zero_() if isinstance(a, torch.Tensor) and a.dtype is torch.int64 else a for a in arguments]
    good = [[None if i is None else i.clone().zero_() for i in a] if isinstance(a, list) else a for a in good]
    with pytest.raises(IndexError, match=message):
        run(op, *arguments, outs=[op(*good)])


def test_mask_error_has_a_hint() -> None:
    x = values(3, 4)
    with pytest.raises(NotImplementedError, match="masked_fill"):
        run(A.index.Tensor, x, [x > 0], outs=[x])
