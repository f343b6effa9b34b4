"""Factorizations against the CPU's if they are unique, and by their defining equations if signs are free."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lazytpu.frontend.torch_private import CHOLESKY
from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
DTYPES = [torch.float32, torch.complex64]


def matrix(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(shape, dtype=dtype)


def definite(dtype: torch.dtype) -> torch.Tensor:
    x = matrix(dtype, 2, 4, 4)
    return x @ x.mH + 4 * torch.eye(4, dtype=dtype)


def close(op: Any, *args: Any, **kwargs: Any) -> None:
    check(op.default, *args, rtol=1e-3, atol=1e-4, **kwargs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(upper: bool, dtype: torch.dtype) -> None:
    x = definite(dtype)
    if CHOLESKY:
        close(A.cholesky, x, upper)
    close(A.linalg_cholesky_ex, x, upper=upper)
    factor = torch.linalg.cholesky(x, upper=upper)
    close(A._cholesky_solve_helper, matrix(dtype, 2, 4, 3), factor, upper)
    close(A.cholesky_inverse, factor, upper)


@pytest.mark.parametrize("upper", [False, True])
def test_diagonals_of_complex_factors_have_no_negative_zero(upper: bool) -> None:
    x = definite(torch.complex64)[:, :1, :1].contiguous()
    expected = torch.linalg.cholesky_ex(x, upper=upper)
    (factor, _) = run(A.linalg_cholesky_ex.default, x, upper=upper, outs=list(expected))
    for each in (factor, expected[0]):
        assert torch.equal(each.imag, torch.zeros(2, 1, 1)) and not each.imag.signbit().any()


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_of_indefinite_matrices_stops_where_lapack_does(upper: bool) -> None:
    x = definite(torch.float32).repeat(2, 1, 1)
    x[1, 2, 2], x[2, 0, 0], x[3, 3, 3] = -1.0, float("nan"), -7.0
    close(A.linalg_cholesky_ex, x, upper=upper)
    close(A.linalg_cholesky_ex, torch.zeros(2, 2), upper=upper)
    close(A.linalg_cholesky_ex, torch.empty(2, 0, 0), upper=upper)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (2, 3, 5)])
def test_lu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = matrix(dtype, *shape)
    close(A.linalg_lu_factor_ex, x)
    close(A.linalg_lu, x)
    factors, pivots, _ = A.linalg_lu_factor_ex.default(x)
    for data, order in ((True, True), (True, False), (False, True)):
        close(A.lu_unpack, factors, pivots, data, order)


def test_info_names_the_first_zero() -> None:
    close(A.linalg_lu_factor_ex, torch.diag(torch.tensor([2.0, 0.0, 1.0, 0.0])))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_lu_solve(left: bool, adjoint: bool, dtype: torch.dtype) -> None:
    factors, pivots, _ = A.linalg_lu_factor_ex.default(matrix(dtype, 2, 4, 4))
    rhs = matrix(dtype, 2, 4, 3) if left else matrix(dtype, 2, 3, 4)
    close(A.linalg_lu_solve, factors, pivots, rhs, left=left, adjoint=adjoint)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inverse(dtype: torch.dtype) -> None:
    close(A.linalg_inv_ex, matrix(dtype, 2, 4, 4))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("flag", [False, True])
def test_triangular(upper: bool, flag: bool) -> None:
    a, rhs = definite(torch.float32), matrix(torch.float32, 2, 4, 4)
    close(A.linalg_solve_triangular, a, rhs, upper=upper, left=flag)
    close(A.linalg_solve_triangular, a, rhs[:1], upper=upper, unitriangular=flag)
    close(A.triangular_solve, rhs, a, upper, flag)


def test_right_hand_sides_of_another_dtype() -> None:
    a = definite(torch.complex64)
    close(A.linalg_solve_triangular, a, matrix(torch.float64, 2, 4, 3), upper=True)


def outs(op: Any, *args: Any, **kwargs: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the rule's results and the CPU's results."""
    want = op.default(*args, **kwargs)
    want = list(want) if isinstance(want, tuple) else [want]
    return run(op.default, *args, outs=want, **kwargs), want


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 5)])
def test_qr(shape: tuple[int, ...], mode: str, dtype: torch.dtype) -> None:
    x = matrix(dtype, *shape)
    (q, r), want = outs(A.linalg_qr, x, mode)
    assert [t.shape for t in (q, r)] == [t.shape for t in want]
    if mode == "r":
        assert_close(r.abs(), want[1].abs())
    else:
        assert_close(q @ r, x)
        assert_close(q.mH @ q, torch.eye(q.shape[-1], dtype=dtype).expand_as(q.mH @ q))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reflectors(dtype: torch.dtype) -> None:
    x = matrix(dtype, 5, 3)
    (a, tau), _ = outs(A.geqrf, x)
    (q,), _ = outs(A.linalg_householder_product, a, tau)
    assert_close(q @ a[:3].triu(), x)
    a, tau = A.geqrf.default(x)
    for transpose in (False, True):
        close(A.ormqr, a, tau, matrix(dtype, 5, 2), True, transpose)
        close(A.ormqr, a, tau, matrix(dtype, 2, 5), False, transpose)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("half", ["L", "U"])
def test_eigh(half: str, dtype: torch.dtype) -> None:
    x = definite(dtype)
    noise = matrix(dtype, 2, 4, 4)
    read = x + (noise.triu(1) if half == "L" else noise.tril(-1))
    (values, vectors), want = outs(A._linalg_eigh, read, half)
    assert_close(values, want[0])
    assert_close(vectors * values[:, None] @ vectors.mH, x)
    (values, vectors), want = outs(A._linalg_eigh, read, half, False)
    assert_close(values, want[0])
    assert vectors.shape == want[1].shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("full", [False, True])
def test_svd(full: bool, dtype: torch.dtype) -> None:
    x = matrix(dtype, 2, 3, 5)
    (u, s, vh), want = outs(A._linalg_svd, x, full)
    assert [t.shape for t in (u, s, vh)] == [t.shape for t in want]
    assert_close(s, want[1])
    assert_close((u * s[:, None].to(dtype)) @ vh[:, :3], x)
    (u, s, vh), want = outs(A._linalg_svd, x, full, False)
    assert [t.shape for t in (u, s, vh)] == [t.shape for t in want]
    assert_close(s, want[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_eig(dtype: torch.dtype) -> None:
    x = matrix(dtype, 2, 4, 4)
    (values, vectors), want = outs(A.linalg_eig, x)
    assert_close(vectors * values[:, None], x.to(torch.complex64) @ vectors)
    assert [t.shape for t in (values, vectors)] == [t.shape for t in want]
    (alone,), _ = outs(A._linalg_eigvals, x)
    assert_close(alone, values)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matrices_with_a_number_that_is_not_finite_are_not_singular(dtype: torch.dtype) -> None:
    x = matrix(dtype, 6, 6)
    x[2] = float("inf")
    assert int(torch.linalg.lu_factor_ex(x.to("tpu")).info) == 0
    assert int(torch.linalg.inv_ex(x.to("tpu")).info) == 0
    x[2] = 0
    assert int(torch.linalg.inv_ex(x.to("tpu")).info) == int(torch.linalg.inv_ex(x).info) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_inverse_of_a_factor_is_exactly_hermitian(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(10, 10, dtype=dtype)
    factor = torch.linalg.cholesky(matrix @ matrix.mH + 10 * torch.eye(10, dtype=dtype))
    for upper, x in ((False, factor), (True, factor.mH.contiguous())):
        inverse = torch.cholesky_inverse(x.to("tpu"), upper=upper).cpu()
        assert torch.equal(inverse, inverse.mH)
        torch.testing.assert_close(inverse, torch.cholesky_inverse(x, upper=upper))
