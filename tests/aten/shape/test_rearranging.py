"""Joining, repeating, flipping and triangles against torch's CPU."""

from __future__ import annotations

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return (torch.randn(shape) * 4).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    x = values(3, 4, dtype=dtype)
    check(A.cat.default, [x, x[:1]])
    check(A.stack.default, [x, x], 1)
    check(A.flip.default, x, [0, -1])
    check(A.roll.default, x, [1], [1])
    check(A.repeat.default, x, [2, 1, 3])
    check(A.tril.default, x)
    check(A.triu.default, x, 1)


def test_cat() -> None:
    x = values(3, 4)
    check(A.cat.default, [x, values(3, 2)], -1)
    check(A.cat.default, [x])
    check(A.cat.default, [torch.ones(0), x, torch.ones(0, 4)])
    check(A.cat.default, [torch.ones(0), torch.ones(0)])
    check(A.cat.default, [torch.ones(2), torch.ones(0), torch.zeros(1)])
    check(A.cat.default, [torch.ones(0, 4), torch.ones(0, 4)])
    check(A.cat.default, [x, torch.ones(2, 4, dtype=torch.int64)])
    check(A.cat.default, [x.int(), x.bfloat16(), x > 0])
    check(A.cat.default, [torch.ones(0, dtype=torch.float64), x])


def test_copied_view_of_an_op_with_derivatives_of_its_own() -> None:
    check(A._test_autograd_multiple_dispatch_view_copy.default, values(3, 4))


def test_stack() -> None:
    check(A.stack.default, [torch.tensor(1.0), torch.tensor(2.0)])
    check(A.stack.default, [values(3, 4)] * 3, -1)
    check(A.stack.default, [values(3), values(3).int()])


def test_flip_and_roll() -> None:
    x = values(3, 4, 5)
    check(A.flip.default, x, [])
    check(A.flip.default, torch.tensor(1.0), [])
    check(A.flip.default, torch.ones(0, 3), [0])
    check(A.roll.default, x, [7])
    check(A.roll.default, x, [1, -2], [0, -1])
    check(A.roll.default, x, [1, 1], [0, 0])
    check(A.roll.default, x, [0], [1])
    check(A.roll.default, torch.ones(0, 3), [1], [0])
    check(A.roll.default, torch.tensor(1.0), [1])


def test_repeat() -> None:
    check(A.repeat.default, values(3, 4), [1, 1])
    check(A.repeat.default, values(3), [2, 0])
    check(A.repeat.default, torch.tensor(1.0), [2, 3])
    check(A.repeat.default, torch.tensor(1.0), [])


@pytest.mark.parametrize("diagonal", [-99, -2, -1, 0, 1, 3, 99])
def test_triangles(diagonal: int) -> None:
    for shape in ((4, 4), (3, 5), (2, 5, 3), (0, 3)):
        check(A.tril.default, values(*shape), diagonal)
        check(A.triu.default, values(*shape), diagonal)


def test_triangles_stop_nan() -> None:
    check(A.tril.default, torch.full((3, 3), float("nan")))
