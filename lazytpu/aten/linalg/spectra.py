"""Eigenvalues, singular values, and functions of matrices, by templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lazytpu.aten.linalg.checks import REASONS
from lazytpu.aten.linalg.matrices import adjoint, triangle
from lazytpu.aten.pointwise.operands import REAL_OF
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, is_complex, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


# -- eigenvalues and singular values


NOT_FINITE = "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values."


def parts(b: Builder, x: SSAValue) -> tuple[SSAValue, SSAValue]:
    """The real and imaginary parts of x; a real x twice."""
    return (b.unary("real", x), b.unary("imag", x)) if is_complex(dtype_of(x)) else (x, x)


def no_nan(b: Builder, x: SSAValue) -> SSAValue:
    """Whether neither part of each element is NaN (i1)."""
    return b.and_(*(b.compare("EQ", p, p) for p in parts(b, x)))


@rule("aten._linalg_eigh.default")
def linalg_eigh(b: Builder, A: SSAValue, UPLO: str = "L", compute_v: bool = True) -> tuple[SSAValue, SSAValue]:
    """(ascending eigenvalues, eigenvectors as columns) of a Hermitian matrix; only one triangle is read."""
    lower = adjoint(b, A) if UPLO.upper() == "U" else A
    lower = triangle(b, lower, upper=False)
    mirrored = adjoint(b, lower)
    shape = shape_of(A)
    row, column = (b.iota("i32", shape, len(shape) - k) for k in (2, 1))
    full_matrix = b.select(b.compare("GE", row, column), lower, mirrored)
    real = REAL_OF.get(dtype_of(A), dtype_of(A))
    values, vectors = b.template("eigh", [full_matrix], [(real, shape[:-1]), (dtype_of(A), shape)])
    b.check(no_nan(b, values), f"linalg.eigh: {REASONS['eig']}", error="LinAlgError")
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
        b.check(no_nan(b, A), NOT_FINITE, error="LinAlgError")
        return b.constant(0, *b.out[0]), values, b.constant(0, *b.out[2])
    rows, columns = (m, n) if full_matrices else (k, k)
    results: Sequence[tuple[str, tuple[int, ...]]] = [
        (dtype, (*batch, m, rows)),
        (real, (*batch, k)),
        (dtype, (*batch, columns, n)),
    ]
    u, values, vh = b.template("svd", [A], results, full=full_matrices)
    b.check(no_nan(b, values), NOT_FINITE, error="LinAlgError")
    return u, values, vh


@rule("aten.linalg_eig.default")
def linalg_eig(b: Builder, self: SSAValue) -> tuple[SSAValue, SSAValue]:
    """(eigenvalues, eigenvectors as columns), complex. XLA computes them on the CPU only."""
    finite = b.and_(*(b.unary("is_finite", p) for p in parts(b, self)))
    b.check(finite, "torch.linalg.eig: input tensor should not contain infs or NaNs.", error="RuntimeError")
    values, vectors = b.template("eig", [self], b.out)
    return values, vectors


@rule("aten._linalg_eigvals.default")
def linalg_eigvals(b: Builder, self: SSAValue) -> SSAValue:
    """Eigenvalues, complex. XLA computes them on the CPU only."""
    values, shape = b.out[0], shape_of(self)
    return b.template("eig", [self], [values, (values[0], shape)])[0]


@rule("aten.linalg_matrix_exp.default")
def linalg_matrix_exp(b: Builder, self: SSAValue) -> SSAValue:
    """The matrix exponential; f16 and bf16 are computed in f32."""
    dtype = dtype_of(self)
    if 0 in shape_of(self):
        return b.constant(0, dtype, shape_of(self))
    wide = b.convert(self, "f32") if dtype in ("f16", "bf16") else self
    (result,) = b.template("matrix_exp", [wide], [(dtype_of(wide), shape_of(wide))])
    return b.convert(result, dtype)
