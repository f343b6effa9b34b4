"""Reductions of segments and their gradients against torch's CPU."""

from __future__ import annotations

import itertools
from math import nan
from typing import Any

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
KINDS = ["sum", "mean", "max", "min", "prod"]
LENGTHS = torch.tensor([3, 0, 3, 2])
X = torch.tensor([1.0, 0.0, 3.0, 4.0, 4.0, 2.0, -1.0, nan])
ZEROS = torch.tensor([0.0, 0.0, 3.0, nan, nan, 0.0, -1.0, 0.0])
GRAD = torch.tensor([1.0, 2.0, -3.0, 4.0])


def cases() -> list[Any]:
    """The gate has lengths without an initial value, and offsets with one."""
    gate = {("lengths", None), ("offsets", 4)}
    every = itertools.product(KINDS, ("lengths", "offsets"), (None, 4))
    return [pytest.param(*case, marks=() if case[1:] in gate else pytest.mark.long) for case in every]


@pytest.mark.parametrize(("kind", "form", "initial"), cases())
def test_lengths_and_offsets(kind: str, form: str, initial: int | None) -> None:
    """Ties, zeros, NaN and empty segments; a negative gradient of a tie is not divided, as on the CPU."""
    x = {"lengths": X, "offsets": ZEROS}[form]
    segments = {form: {"lengths": LENGTHS.int(), "offsets": torch.tensor([0, 3, 3, 6, 8])}[form]}
    check(A.segment_reduce.default, x, kind, **segments, initial=initial)
    output = A.segment_reduce.default(x, kind, **segments, initial=initial)
    check(A._segment_reduce_backward.default, GRAD, output, x, kind, **segments, initial=initial)


@pytest.mark.parametrize("kind", KINDS)
def test_dims(kind: str) -> None:
    torch.manual_seed(0)
    dtype = {"sum": torch.float16, "mean": torch.bfloat16}.get(kind, torch.float64)
    x, lengths = torch.randn(2, 3, 2).to(dtype), torch.tensor([[1, 2], [3, 0]])
    check(A.segment_reduce.default, x, kind, lengths=lengths, axis=1)
    check(A.segment_reduce.default, x.mT, kind, lengths=torch.tensor([2, 0]), axis=0)
    output = A.segment_reduce.default(x, kind, lengths=lengths, axis=1)
    grad = torch.randn(2, 2, 2).to(dtype)
    check(A._segment_reduce_backward.default, grad, output, x, kind, lengths=lengths, axis=1)


def test_elements_in_no_segment() -> None:
    check(A.segment_reduce.default, X, "sum", lengths=torch.tensor([1, 2]), unsafe=True)
    check(A.segment_reduce.default, X, "max", offsets=torch.tensor([1, 2, 5]))
    output = A.segment_reduce.default(X, "sum", offsets=torch.tensor([1, 2, 5]))
    check(A._segment_reduce_backward.default, GRAD[:2], output, X, "sum", offsets=torch.tensor([1, 2, 5]))


def test_no_elements() -> None:
    for kind in KINDS:
        check(A.segment_reduce.default, torch.zeros(0, 2), kind, lengths=torch.tensor([0, 0]))
        check(A.segment_reduce.default, torch.zeros(3, 0), kind, lengths=torch.tensor([1, 2]))


@pytest.mark.parametrize("lengths", [[1, 2], [1, -2, 9]])
def test_lengths_that_do_not_fit(lengths: list[int]) -> None:
    outs = [torch.empty(len(lengths))]
    with pytest.raises(IndexError, match="lengths"):
        run(A.segment_reduce.default, X, "sum", lengths=torch.tensor(lengths), outs=outs)
