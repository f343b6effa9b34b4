"""Matrix factorizations and solves on the last two dimensions, by the templates of `lowering/templates/linalg.py`.

f16 and bf16 do not come here: torch refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lazytpu.aten.pointwise import REAL_OF, full
from lazytpu.aten.registry import broadcast_shape, rule
from lazytpu.ir.types import dtype_of, is_complex, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def transposed(b: Builder, x: SSAValue) -> SSAValue:
    """x with its last two dimensions exchanged."""
    rank = len(shape_of(x))
    return b.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def adjoint(b: Builder, x: SSAValue) -> SSAValue:
    """The conjugate transpose."""
    x = transposed(b, x)
    return b.binary("complex", b.unary("real", x), b.neg(b.unary("imag", x))) if is_complex(dtype_of(x)) else x


def triangle(b: Builder, x: SSAValue, *, upper: bool, unit: bool = False) -> SSAValue:
    """One triangle of x, zeros elsewhere; `unit` puts ones on the diagonal."""
    shape = shape_of(x)
    row, column = (b.iota("i32", shape, len(shape) - k) for k in (2, 1))
    kept = b.select(b.compare("GE" if upper else "LE", column, row), x, full(b, 0, x))
    return b.select(b.compare("EQ", column, row), full(b, 1, x), kept) if unit else kept


def part(b: Builder, x: SSAValue, rows: int, columns: int) -> SSAValue:
    """The leading rows and columns of x."""
    batch = shape_of(x)[:-2]
    return b.slice(x, [0] * len(shape_of(x)), [*batch, rows, columns])


def diagonal(b: Builder, x: SSAValue) -> SSAValue:
    """(…, k): the elements on the diagonal of (…, m, n)."""
    shape = shape_of(x)
    k = min(shape[-2:])
    square = part(b, x, k, k)
    row, column = (b.iota("i32", shape_of(square), len(shape) - d) for d in (2, 1))
    only = b.select(b.compare("EQ", row, column), square, full(b, 0, square))
    return b.reduce("add", only, [len(shape) - 1])


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
    batch = _batch(a, rhs)
    a, rhs = (b.broadcast_to(x, [*batch, *shape_of(x)[-2:]]) for x in (a, rhs))
    options = {"left": left, "upper": upper, "transpose": transpose, "unit_diagonal": unit}
    return b.template("triangular_solve", [a, rhs], [(dtype_of(rhs), shape_of(rhs))], **options)[0]


def _batch(*values: SSAValue) -> tuple[int, ...]:
    return broadcast_shape(*(shape_of(v)[:-2] for v in values))


# -- triangular matrices


@rule("aten.linalg_solve_triangular.default")
def linalg_solve_triangular(
    b: Builder, self: SSAValue, B: SSAValue, upper: bool, left: bool = True, unitriangular: bool = False
) -> SSAValue:
    """X with self X = B, or X self = B."""
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


# -- Cholesky


def cholesky_factor(b: Builder, a: SSAValue, upper: bool) -> SSAValue:
    """L with L Lᴴ = a, or Lᴴ. Only the triangle that is asked for is read."""
    (found,) = b.template("cholesky", [adjoint(b, a) if upper else a], [(dtype_of(a), shape_of(a))])
    found = triangle(b, found, upper=False)
    return adjoint(b, found) if upper else found


@rule("aten.linalg_cholesky_ex.default")
def linalg_cholesky_ex(
    b: Builder, self: SSAValue, upper: bool = False, check_errors: bool = False
) -> tuple[SSAValue, SSAValue]:
    """(L, info): info is 0, or 1 where the matrix is not positive definite (LAPACK says which minor is not)."""
    factor = cholesky_factor(b, self, upper)
    real = b.unary("real", factor) if is_complex(dtype_of(factor)) else factor
    rank = len(shape_of(self))
    failed = b.reduce("or", b.compare("NE", real, real), [rank - 2, rank - 1])
    return factor, b.convert(failed, "i32")


@rule("aten.cholesky.default")
def cholesky(b: Builder, self: SSAValue, upper: bool = False) -> SSAValue:
    """L; NaN where the matrix is not positive definite."""
    return cholesky_factor(b, self, upper)


@rule("aten._cholesky_solve_helper.default")
def cholesky_solve(b: Builder, self: SSAValue, A: SSAValue, upper: bool) -> SSAValue:
    """X with L Lᴴ X = self, where A is L, or Lᴴ."""
    lower = adjoint(b, A) if upper else A
    half = solve_triangular(b, lower, self, upper=False)
    return solve_triangular(b, adjoint(b, lower), half, upper=True)


@rule("aten.cholesky_inverse.default")
def cholesky_inverse(b: Builder, self: SSAValue, upper: bool = False) -> SSAValue:
    """The inverse of L Lᴴ."""
    return cholesky_solve(b, identity(b, self), self, upper)


def identity(b: Builder, like: SSAValue) -> SSAValue:
    """Ones on the diagonal, in the shape and dtype of `like`."""
    return triangle(b, full(b, 0, like), upper=True, unit=True)


# -- LU


def factor_lu(b: Builder, a: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(L and U in one matrix, pivots counted from 1 as LAPACK does, the permutation of rows), the latter two i32."""
    *batch, m, n = shape_of(a)
    k = min(m, n)
    results: list[tuple[str, tuple[int, ...]]] = [(dtype_of(a), shape_of(a))]
    results += [("i32", (*batch, k)), ("i32", (*batch, m))]
    factors, pivots, permutation = b.template("lu", [a], results)
    return factors, b.add(pivots, full(b, 1, pivots)), permutation


def permutation_of(b: Builder, pivots: SSAValue, size: int) -> SSAValue:
    """The order of `size` rows after the exchanges that `pivots` (counted from 1) say."""
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
    """(L with ones on its diagonal, U) of the matrix that holds both."""
    m, n = shape_of(factors)[-2:]
    k = min(m, n)
    lower = triangle(b, part(b, factors, m, k), upper=False, unit=True)
    return lower, triangle(b, part(b, factors, k, n), upper=True)


def first_zero(b: Builder, factors: SSAValue) -> SSAValue:
    """LAPACK's info: 0, or which element of U's diagonal (counted from 1) is the first that is 0."""
    on = diagonal(b, factors)
    shape = shape_of(on)
    if shape[-1] == 0:
        return b.constant(0, "i32", shape[:-1])
    place = b.iota("i32", shape, len(shape) - 1)
    after = full(b, shape[-1], place)
    first = b.reduce("min", b.select(b.compare("EQ", on, full(b, 0, on)), place, after), [len(shape) - 1])
    found = b.compare("LT", first, full(b, shape[-1], first))
    return b.select(found, b.add(first, full(b, 1, first)), full(b, 0, first))


@rule("aten.linalg_lu_factor_ex.default")
def linalg_lu_factor_ex(
    b: Builder, A: SSAValue, pivot: bool = True, check_errors: bool = False
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(L and U in one matrix, pivots, info)."""
    _require_pivots(pivot)
    factors, pivots, _ = factor_lu(b, A)
    return factors, pivots, first_zero(b, factors)


@rule("aten.linalg_lu.default")
def linalg_lu(b: Builder, A: SSAValue, pivot: bool = True) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(P, L, U) with A = P L U."""
    _require_pivots(pivot)
    factors, _, permutation = factor_lu(b, A)
    return permutation_matrix(b, permutation, dtype_of(A)), *unpacked(b, factors)


def _require_pivots(pivot: bool) -> None:
    if not pivot:
        raise RuntimeError("linalg.lu_factor: LU without pivoting is not implemented on 'tpu', as on the CPU")


@rule("aten.lu_unpack.default")
def lu_unpack(
    b: Builder, LU_data: SSAValue, LU_pivots: SSAValue, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(P, L, U) of what lu_factor gave; what is not asked for is empty."""
    empty = [b.constant(0, *out) for out in b.out]
    lower, upper = unpacked(b, LU_data) if unpack_data else empty[1:]
    if not unpack_pivots:
        return empty[0], lower, upper
    order = permutation_of(b, LU_pivots, shape_of(LU_data)[-2])
    return permutation_matrix(b, order, dtype_of(LU_data)), lower, upper


@rule("aten.linalg_lu_solve.default")
def linalg_lu_solve(
    b: Builder, LU: SSAValue, pivots: SSAValue, B: SSAValue, left: bool = True, adjoint: bool = False
) -> SSAValue:
    """X with A X = B, Aᴴ X = B, X A = B or X Aᴴ = B, where A = P L U."""
    if not left:  # X A = B is Aᴴ Xᴴ = Bᴴ
        return conjugated(b, linalg_lu_solve(b, LU, pivots, conjugated(b, B), True, not adjoint))
    order = permutation_of(b, pivots, shape_of(LU)[-1])
    p = permutation_matrix(b, order, dtype_of(LU))
    if adjoint:
        half = solve_triangular(b, conjugated(b, LU), B, upper=False)
        return _product(b, p, solve_triangular(b, conjugated(b, LU), half, upper=True, unit=True))
    half = solve_triangular(b, LU, _product(b, transposed(b, p), B), upper=False, unit=True)
    return solve_triangular(b, LU, half, upper=True)


conjugated = adjoint  # the schema's flag of that name hides the function in the rule


def _product(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    batch = _batch(x, y)
    x, y = (b.broadcast_to(v, [*batch, *shape_of(v)[-2:]]) for v in (x, y))
    dims = list(range(len(batch)))
    return b.dot_general(x, y, dims, dims, [len(batch) + 1], [len(batch)])


@rule("aten.linalg_inv_ex.default")
def linalg_inv_ex(b: Builder, A: SSAValue, check_errors: bool = False) -> tuple[SSAValue, SSAValue]:
    """(the inverse, info), by LU."""
    factors, _, permutation = factor_lu(b, A)
    p = permutation_matrix(b, permutation, dtype_of(A))
    half = solve_triangular(b, factors, transposed(b, p), upper=False, unit=True)
    return solve_triangular(b, factors, half, upper=True), first_zero(b, factors)


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
def householder_product(b: Builder, input: SSAValue, tau: SSAValue) -> SSAValue:
    """The product of the reflectors that geqrf leaves."""
    return b.template("householder_product", [input, tau], [(dtype_of(input), shape_of(input))])[0]


@rule("aten.ormqr.default")
def ormqr(
    b: Builder, self: SSAValue, input2: SSAValue, input3: SSAValue, left: bool = True, transpose: bool = False
) -> SSAValue:
    """op(Q) input3, or input3 op(Q), with the square Q of the reflectors `self` and tau `input2`."""
    *batch, m, n = shape_of(self)
    zeros = [0] * len(batch)
    square = b.pad(self, b.constant(0, dtype_of(self)), [*zeros, 0, 0], [*zeros, 0, m - n])
    (q,) = b.template("householder_product", [square, input2], [(dtype_of(square), shape_of(square))])
    q = adjoint(b, q) if transpose else q
    return _product(b, q, input3) if left else _product(b, input3, q)


# -- eigenvalues and singular values


@rule("aten._linalg_eigh.default")
def linalg_eigh(b: Builder, A: SSAValue, UPLO: str = "L", compute_v: bool = True) -> tuple[SSAValue, SSAValue]:
    """(ascending eigenvalues, eigenvectors as columns) of a Hermitian matrix, one triangle of which is read."""
    lower = adjoint(b, A) if UPLO.upper() == "U" else A
    lower = triangle(b, lower, upper=False)
    mirrored = adjoint(b, lower)
    shape = shape_of(A)
    row, column = (b.iota("i32", shape, len(shape) - k) for k in (2, 1))
    whole = b.select(b.compare("GE", row, column), lower, mirrored)
    real = REAL_OF.get(dtype_of(A), dtype_of(A))
    values, vectors = b.template("eigh", [whole], [(real, shape[:-1]), (dtype_of(A), shape)])
    return values, vectors if compute_v else b.constant(0, *b.out[1])


@rule("aten._linalg_svd.default")
def linalg_svd(
    b: Builder, A: SSAValue, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None
) -> tuple[SSAValue, ...]:
    """(U, descending singular values, Vᴴ); U and Vᴴ are empty unless `compute_uv`."""
    *batch, m, n = shape_of(A)
    k, dtype = min(m, n), dtype_of(A)
    real = REAL_OF.get(dtype, dtype)
    if not compute_uv:
        (values,) = b.template("svdvals", [A], [(real, (*batch, k))])
        return b.constant(0, *b.out[0]), values, b.constant(0, *b.out[2])
    rows, columns = (m, n) if full_matrices else (k, k)
    results: Sequence[tuple[str, tuple[int, ...]]] = [
        (dtype, (*batch, m, rows)),
        (real, (*batch, k)),
        (dtype, (*batch, columns, n)),
    ]
    return tuple(b.template("svd", [A], results, full=full_matrices))


@rule("aten.linalg_eig.default")
def linalg_eig(b: Builder, self: SSAValue) -> tuple[SSAValue, SSAValue]:
    """(eigenvalues, eigenvectors as columns), complex. XLA computes them on the CPU only."""
    values, vectors = b.template("eig", [self], b.out)
    return values, vectors


@rule("aten._linalg_eigvals.default")
def linalg_eigvals(b: Builder, self: SSAValue) -> SSAValue:
    """Eigenvalues, complex. XLA computes them on the CPU only."""
    values, shape = b.out[0], shape_of(self)
    return b.template("eig", [self], [values, (values[0], shape)])[0]
