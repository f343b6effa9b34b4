"""Cholesky, LU, QR and LDL factorizations, by templates. torch refuses f16 and bf16 for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.linalg.checks import check_info
from lazytpu.aten.linalg.matrices import adjoint, diagonal, part, product, transposed, triangle
from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.preconditions import check_pivots
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, is_complex, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


# -- Cholesky


def cholesky_factor(b: Builder, a: SSAValue, upper: bool) -> tuple[SSAValue, SSAValue]:
    """(factor, info): L with L Lᴴ = a, or Lᴴ if `upper`. Only that triangle of `a` is read.

    `info` is 0, or the order of the first leading minor that is not positive; L is then LAPACK's partial result.
    """
    dtype, shape = dtype_of(a), shape_of(a)
    if 0 in shape:
        return b.constant(0, dtype, shape), b.constant(0, "i32", shape[:-2])
    factor, info = b.template("cholesky", [adjoint(b, a) if upper else a], [(dtype, shape), ("i32", shape[:-2])])
    if upper:
        factor = transposed(b, factor)
        if is_complex(dtype):  # the conjugate, by 0.0 - x: that of a real diagonal has 0.0, too, not -0.0
            imag = b.unary("imag", factor)
            factor = b.binary("complex", b.unary("real", factor), b.sub(full(b, 0, imag), imag))
    return factor, info


@rule("aten.linalg_cholesky_ex.default")
def linalg_cholesky_ex(
    b: Builder, self: SSAValue, upper: bool = False, check_errors: bool = False
) -> tuple[SSAValue, SSAValue]:
    """(L, info)."""
    factor, info = cholesky_factor(b, self, upper)
    if check_errors:
        check_info(b, info, "torch.linalg.cholesky_ex")
    return factor, info


@rule("aten.cholesky.default")
def cholesky(b: Builder, self: SSAValue, upper: bool = False) -> SSAValue:
    """L."""
    factor, info = cholesky_factor(b, self, upper)
    check_info(b, info, "cholesky")
    return factor


# -- LU


def factor_lu(b: Builder, a: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(L and U in one matrix, pivots counted from 1 as in LAPACK, the permutation of rows), the latter two i32."""
    *batch, m, n = shape_of(a)
    k = min(m, n)
    results: list[tuple[str, tuple[int, ...]]] = [(dtype_of(a), shape_of(a))]
    results += [("i32", (*batch, k)), ("i32", (*batch, m))]
    factors, pivots, permutation = b.template("lu", [a], results)
    return factors, b.add(pivots, full(b, 1, pivots)), permutation


def permutation_of(b: Builder, pivots: SSAValue, size: int) -> SSAValue:
    """The order of `size` rows after the exchanges of `pivots` (counted from 1)."""
    shape = (*shape_of(pivots)[:-1], size)
    zero_based = b.sub(b.convert(pivots, "i32"), b.constant(1, "i32", shape_of(pivots)))
    return b.template("pivots_to_permutation", [zero_based], [("i32", shape)], size=size)[0]


def permutation_matrix(b: Builder, permutation: SSAValue, dtype: str) -> SSAValue:
    """P with P[permutation[i], i] = 1."""
    n = shape_of(permutation)[-1]
    shape = (*shape_of(permutation), n)
    row = b.iota("i32", shape, len(shape) - 2)
    column = b.broadcast_in_dim(permutation, shape, [*range(len(shape) - 2), len(shape) - 1])
    return b.convert(b.compare("EQ", row, column), dtype)


def unpacked(b: Builder, factors: SSAValue) -> tuple[SSAValue, SSAValue]:
    """(L with ones on its diagonal, U) from the matrix that holds both."""
    m, n = shape_of(factors)[-2:]
    k = min(m, n)
    lower = triangle(b, part(b, factors, m, k), upper=False, unit=True)
    return lower, triangle(b, part(b, factors, k, n), upper=True)


def first_zero(b: Builder, factors: SSAValue) -> SSAValue:
    """LAPACK's info: the position, counted from 1, of the first zero on U's diagonal, or 0 if there is none. Factors
    that are not finite are not singular: libraries differ in the elements that a NaN reaches."""
    pivots = diagonal(b, factors)
    shape = shape_of(pivots)
    if shape[-1] == 0:
        return b.constant(0, "i32", shape[:-1])
    position = b.iota("i32", shape, len(shape) - 1)
    past = full(b, shape[-1], position)
    first = b.reduce("min", b.select(b.compare("EQ", pivots, full(b, 0, pivots)), position, past), [len(shape) - 1])
    singular = b.compare("LT", first, full(b, shape[-1], first))
    rank = len(shape_of(factors))
    for component in [b.unary(n, factors) for n in ("real", "imag")] if is_complex(dtype_of(factors)) else [factors]:
        singular = b.and_(singular, b.reduce("min", b.unary("is_finite", component), [rank - 2, rank - 1]))
    return b.select(singular, b.add(first, full(b, 1, first)), full(b, 0, first))


@rule("aten.linalg_lu_factor_ex.default")
def linalg_lu_factor_ex(
    b: Builder, A: SSAValue, pivot: bool = True, check_errors: bool = False
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(L and U in one matrix, pivots, info). LU without pivoting is refused earlier, as on the CPU."""
    factors, pivots, _ = factor_lu(b, A)
    info = first_zero(b, factors)
    if check_errors:
        check_info(b, info, "torch.linalg.lu_factor_ex")
    return factors, pivots, info


@rule("aten.linalg_lu.default")
def linalg_lu(b: Builder, A: SSAValue, pivot: bool = True) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(P, L, U) with A = P L U."""
    factors, _, permutation = factor_lu(b, A)
    p = permutation_matrix(b, permutation, dtype_of(A)) if pivot else b.constant(0, *b.out[0])  # P is empty
    return p, *unpacked(b, factors)


@rule("aten.lu_unpack.default")
def lu_unpack(
    b: Builder, LU_data: SSAValue, LU_pivots: SSAValue, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(P, L, U) from the results of lu_factor; parts that are not requested are empty."""
    empty = [b.constant(0, *out) for out in b.out]
    lower, upper = unpacked(b, LU_data) if unpack_data else empty[1:]
    if not unpack_pivots:
        return empty[0], lower, upper
    message = "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive."
    check_pivots(b, LU_pivots, shape_of(LU_data)[-2], f"{message} Did you properly pass the result of lu_factor?")
    order = permutation_of(b, LU_pivots, shape_of(LU_data)[-2])
    return permutation_matrix(b, order, dtype_of(LU_data)), lower, upper


# -- QR


@rule("aten.linalg_qr.default")
def linalg_qr(b: Builder, A: SSAValue, mode: str = "reduced") -> tuple[SSAValue, SSAValue]:
    """(Q, R); mode "r" leaves Q empty, "complete" makes it square."""
    *batch, m, n = shape_of(A)
    k = m if mode == "complete" else min(m, n)
    results = [(dtype_of(A), (*batch, m, k)), (dtype_of(A), (*batch, k, n))]
    q, r = b.template("qr", [A], results, full=mode == "complete")
    return (b.constant(0, *b.out[0]) if mode == "r" else q), r


@rule("aten.geqrf.default")
def geqrf(b: Builder, self: SSAValue) -> tuple[SSAValue, SSAValue]:
    """(R with the reflectors below its diagonal, tau)."""
    *batch, m, n = shape_of(self)
    a, tau = b.template("geqrf", [self], [(dtype_of(self), shape_of(self)), (dtype_of(self), (*batch, min(m, n)))])
    return a, tau


@rule("aten.linalg_householder_product.default")
def householderproduct(b: Builder, input: SSAValue, tau: SSAValue) -> SSAValue:
    """The product of the reflectors that geqrf returns."""
    return b.template("householder_product", [input, tau], [(dtype_of(input), shape_of(input))])[0]


@rule("aten.ormqr.default")
def ormqr(
    b: Builder, self: SSAValue, input2: SSAValue, input3: SSAValue, left: bool = True, transpose: bool = False
) -> SSAValue:
    """op(Q) input3, or input3 op(Q), for the square Q of the reflectors `self` with tau `input2`."""
    *batch, m, n = shape_of(self)
    zeros = [0] * len(batch)
    square = b.pad(self, b.constant(0, dtype_of(self)), [*zeros, 0, 0], [*zeros, 0, m - n])
    (q,) = b.template("householder_product", [square, input2], [(dtype_of(square), shape_of(square))])
    q = adjoint(b, q) if transpose else q
    return product(b, q, input3) if left else product(b, input3, q)


# -- LDL


@rule("aten.linalg_ldl_factor_ex.default")
def linalg_ldl_factor_ex(
    b: Builder, self: SSAValue, hermitian: bool = False, check_errors: bool = False
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(L and the block diagonal D in one matrix, pivots, info) of a symmetric or Hermitian matrix."""
    if 0 in shape_of(self):
        factors, pivots, info = (b.constant(0, *out) for out in b.out)
    else:
        factors, pivots, info = b.template("ldl_factor", [self], b.out, hermitian=hermitian)
    if check_errors:
        check_info(b, info, "torch.linalg.ldl_factor_ex")
    return factors, pivots, info
