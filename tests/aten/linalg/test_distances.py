"""Pairwise distances and their gradients against torch's CPU."""

from __future__ import annotations

from math import inf

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
ORDERS = [0.0, 1.0, 1.5, 2.0, 3.0, inf]


def values(*shape: int) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape)


@pytest.mark.parametrize("p", ORDERS)
def test_cdist(p: float) -> None:
    x, y = values(2, 4, 3), values(2, 5, 3)
    y[0, 1] = x[0, 2]
    check(A._cdist_forward.default, x, y, p, None)
    distance = A._cdist_forward.default(x, y, p, None)
    check(A._cdist_backward.default, values(2, 4, 5), x, y, p, distance)


@pytest.mark.parametrize("p", ORDERS)
def test_pdist(p: float) -> None:
    x = values(4, 3)
    x[3] = x[1]
    check(A._pdist_forward.default, x, p)
    check(A._pdist_backward.default, values(6), x, p, A._pdist_forward.default(x, p))


def test_gradients_of_batches_that_broadcast() -> None:
    points, batch = values(1, 4, 3), values(2, 5, 3)
    for x, y in ((points, batch), (batch, points)):
        distance = A._cdist_forward.default(x, y, 2.0, None)
        check(A._cdist_backward.default, torch.ones_like(distance), x, y, 2.0, distance)
    empty = A._cdist_forward.default(points, batch[:0], 2.0, None)
    check(A._cdist_backward.default, empty, points, batch[:0], 2.0, empty)


def test_many_rows_and_few() -> None:
    check(A._cdist_forward.default, values(30, 3), values(40, 3), 2.0, None, atol=1e-5)
    check(A._cdist_forward.default, torch.ones(0, 3), values(4, 3), 2.0, None)
    check(A._cdist_forward.default, torch.ones(2, 0), torch.ones(4, 0), 2.0, None)
    check(A._pdist_forward.default, values(1, 3), 2.0)
