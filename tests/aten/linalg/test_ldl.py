"""LDL factors with LAPACK's pivots, and solves by them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
C64 = torch.complex64


def cases() -> list[Any]:
    """All sizes of one dtype; both kinds only for complex numbers, where they differ."""
    gate = {*itertools.product((1, 2, 6), (False,), (torch.float32,)), *itertools.product((2,), (False, True), (C64,))}
    every = itertools.product((1, 2, 6), (False, True), (torch.float32, torch.float64, C64))
    return [pytest.param(*case, marks=() if case in gate else pytest.mark.long) for case in every]


@pytest.mark.parametrize(("n", "hermitian", "dtype"), cases(), ids=str)
def test_factors_and_solves(n: int, hermitian: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(n)
    x = torch.randn(4, n, n, dtype=dtype)  # indefinite: some blocks have two rows
    check(A.linalg_ldl_factor_ex.default, x, hermitian=hermitian, rtol=1e-3, atol=1e-4)
    factors, pivots, _ = A.linalg_ldl_factor_ex.default(x, hermitian=hermitian)
    rhs = torch.randn(4, n, 2, dtype=dtype)
    check(A.linalg_ldl_solve.default, factors, pivots, rhs, hermitian=hermitian, rtol=2e-3, atol=1e-3)


def test_blocks_of_two_rows_and_info() -> None:
    turned = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    _, pivots, info = A.linalg_ldl_factor_ex.default(turned)
    assert pivots.tolist() == [-3, -3, 3] and info.item() == 3
    check(A.linalg_ldl_factor_ex.default, turned)
    check(A.linalg_ldl_factor_ex.default, torch.zeros(2, 2, 2))


def test_empty() -> None:
    check(A.linalg_ldl_factor_ex.default, torch.empty(2, 0, 0))
    factors, pivots, _ = A.linalg_ldl_factor_ex.default(torch.eye(3))
    check(A.linalg_ldl_solve.default, factors, pivots, torch.empty(3, 0))


def test_a_batch_of_right_hand_sides() -> None:
    torch.manual_seed(0)
    factors, pivots, _ = A.linalg_ldl_factor_ex.default(torch.randn(3, 3))
    check(A.linalg_ldl_solve.default, factors, pivots, torch.randn(2, 3, 2), rtol=1e-3, atol=1e-3)


def test_zeros_above_the_diagonal_are_positive() -> None:
    torch.manual_seed(1)
    factors = torch.linalg.ldl_factor(torch.randn(9, 9, device="tpu")).LD.cpu()
    upper = factors[torch.ones(9, 9, dtype=torch.bool).triu(1)]
    assert not upper.any() and not upper.signbit().any()
