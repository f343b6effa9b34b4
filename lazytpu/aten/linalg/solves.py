"""Solves with triangular matrices and with factors, and inverses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.linalg.checks import check_info
from lazytpu.aten.linalg.factorizations import factor_lu, first_zero, permutation_matrix, permutation_of
from lazytpu.aten.linalg.matrices import adjoint, batch_of, identity, product, transposed
from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.preconditions import check_pivots
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def solve_triangular(
    b: Builder,
    a: SSAValue,
    rhs: SSAValue,
    *,
    upper: bool,
    left: bool = True,
    transpose: bool = False,
    unit: bool = False,
) -> SSAValue:
    """x with op(a) x = rhs, or x op(a) = rhs; batch dimensions are broadcast."""
    batch = batch_of(a, rhs)
    a, rhs = (b.broadcast_to(x, [*batch, *shape_of(x)[-2:]]) for x in (a, rhs))
    options = {"left": left, "upper": upper, "transpose": transpose, "unit_diagonal": unit}
    return b.template("triangular_solve", [a, rhs], [(dtype_of(rhs), shape_of(rhs))], **options)[0]


# -- triangular matrices


@rule("aten.linalg_solve_triangular.default")
def linalg_solve_triangular(
    b: Builder, self: SSAValue, B: SSAValue, upper: bool, left: bool = True, unitriangular: bool = False
) -> SSAValue:
    """X with self X = B, or X self = B, in self's dtype."""
    B = b.convert(B, dtype_of(self))
    return solve_triangular(b, self, B, upper=upper, left=left, unit=unitriangular)


@rule("aten.triangular_solve.default")
def triangular_solve(
    b: Builder,
    self: SSAValue,
    A: SSAValue,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[SSAValue, SSAValue]:
    """(X with op(A) X = self, a copy of A)."""
    solution = solve_triangular(b, A, self, upper=upper, transpose=transpose, unit=unitriangular)
    return solution, b.broadcast_to(A, b.out[1][1])


# -- factors


@rule("aten._cholesky_solve_helper.default")
def cholesky_solve(b: Builder, self: SSAValue, A: SSAValue, upper: bool) -> SSAValue:
    """X with L Lᴴ X = self, where A is L, or Lᴴ if `upper`."""
    lower = adjoint(b, A) if upper else A
    half = solve_triangular(b, lower, self, upper=False)
    return solve_triangular(b, adjoint(b, lower), half, upper=True)


@rule("aten.cholesky_inverse.default")
def cholesky_inverse(b: Builder, self: SSAValue, upper: bool = False) -> SSAValue:
    """The inverse of L Lᴴ, exactly Hermitian as the CPU's."""
    check_info(b, first_zero(b, self), "cholesky_inverse")
    half = b.mul(inverse := cholesky_solve(b, identity(b, self), self, upper), full(b, 0.5, inverse))
    return b.add(half, adjoint(b, half))


@rule("aten.linalg_lu_solve.default")
def linalg_lu_solve(
    b: Builder, LU: SSAValue, pivots: SSAValue, B: SSAValue, left: bool = True, adjoint: bool = False
) -> SSAValue:
    """X with A X = B, Aᴴ X = B, X A = B or X Aᴴ = B, where A = P L U."""
    if not left:  # X A = B is Aᴴ Xᴴ = Bᴴ
        return conjugated(b, linalg_lu_solve(b, LU, pivots, conjugated(b, B), True, not adjoint))
    message = "Pivots given to lu_solve must all be between 1 and LU.size(-2) inclusive. "
    message += "Did you properly pass the result of lu_factor?"
    check_pivots(b, pivots, shape_of(LU)[-2], message)
    order = permutation_of(b, pivots, shape_of(LU)[-1])
    p = permutation_matrix(b, order, dtype_of(LU))
    if adjoint:
        half = solve_triangular(b, conjugated(b, LU), B, upper=False)
        return product(b, p, solve_triangular(b, conjugated(b, LU), half, upper=True, unit=True))
    half = solve_triangular(b, LU, product(b, transposed(b, p), B), upper=False, unit=True)
    return solve_triangular(b, LU, half, upper=True)


conjugated = adjoint  # in the rule above, the schema's flag `adjoint` hides the function


@rule("aten.linalg_inv_ex.default")
def linalg_inv_ex(b: Builder, A: SSAValue, check_errors: bool = False) -> tuple[SSAValue, SSAValue]:
    """(the inverse, info), by LU."""
    factors, _, permutation = factor_lu(b, A)
    p = permutation_matrix(b, permutation, dtype_of(A))
    half = solve_triangular(b, factors, transposed(b, p), upper=False, unit=True)
    info = first_zero(b, factors)
    if check_errors:
        check_info(b, info, "linalg.inv_ex")
    return solve_triangular(b, factors, half, upper=True), info


@rule("aten.linalg_ldl_solve.default")
def linalg_ldl_solve(b: Builder, LD: SSAValue, pivots: SSAValue, B: SSAValue, *, hermitian: bool = False) -> SSAValue:
    """X with A X = B, where (LD, pivots) is ldl_factor of A."""
    message = "Pivots given to ldl_solve must all satisfy |pivot| <= LD.size(-2). "
    message += "Did you properly pass the result of ldl_factor?"
    check_pivots(b, b.unary("abs", pivots), shape_of(LD)[-2], message)
    batch = batch_of(LD, B)
    operands = [b.broadcast_to(v, [*batch, *shape_of(v)[-k:]]) for v, k in ((LD, 2), (pivots, 1), (B, 2))]
    if 0 in shape_of(operands[2]):
        return b.constant(0, *b.out[0])
    return b.template("ldl_solve", operands, b.out, hermitian=hermitian)[0]
