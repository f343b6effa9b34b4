"""Determinants, solves and pseudo-inverses, recorded as the factorizations that compute them.

torch's derivatives of determinants use the LU factors. They expect the factors of the transpose if the matrix is
contiguous and real (`use_A_T` in FunctionsManual.cpp), which is known only at the call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.by_release import INTEGER_SOLVE_ERROR
from lazytpu.frontend.inference.indexing import scalar_type
from lazytpu.frontend.inference.infer import infer
from lazytpu.frontend.inference.linalg import LAPACK, broadcast
from lazytpu.frontend.ops import least_squares
from lazytpu.frontend.recording.kernels import kernel

aten = torch.ops.aten


def _check(op: OpOverload, matrix: torch.Tensor) -> None:
    """Raise the errors of `op` for a matrix that is not square, or of a dtype that LAPACK lacks."""
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.dtype not in LAPACK:
        infer(op, {"A": matrix})


def _factored(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the (LU, pivots) that a determinant's derivative expects."""
    flipped = matrix.is_contiguous() and not matrix.is_complex()
    factors, pivots, _ = torch.linalg.lu_factor_ex(matrix.mT if flipped else matrix)
    return factors, pivots


def _parity(pivots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the determinant of the permutation: -1 for an odd number of exchanges."""
    untouched = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return (1 - 2 * ((pivots != untouched).sum(-1) % 2)).to(dtype)


def linalg_det(A: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The kernel of aten::_linalg_det: (determinant, LU, pivots)."""
    _check(aten._linalg_det.default, A)
    lu, pivots = _factored(A)
    return lu.diagonal(dim1=-2, dim2=-1).prod(-1) * _parity(pivots, A.dtype), lu, pivots


def linalg_slogdet(A: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The kernel of aten::_linalg_slogdet: (sign, log|determinant|, LU, pivots)."""
    _check(aten._linalg_slogdet.default, A)
    lu, pivots = _factored(A)
    diagonal = lu.diagonal(dim1=-2, dim2=-1)
    sign = diagonal.sgn().prod(-1) * _parity(pivots, A.dtype)
    return sign, diagonal.abs().log().sum(-1), lu, pivots


def linalg_solve_ex(
    A: torch.Tensor, B: torch.Tensor, left: bool = True, check_errors: bool = False
) -> tuple[torch.Tensor, ...]:
    """The kernel of aten::_linalg_solve_ex: (X with A X = B or X A = B, LU, pivots, info)."""
    vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and B.shape == A.shape[:-1])
    _check_solve(A, B, left, vector)
    lu, pivots, info = torch.linalg.lu_factor_ex(A)
    if check_errors:
        aten._linalg_check_errors.default(info, "torch.linalg.solve_ex", is_matrix=A.dim() == 2)
    rhs = B.unsqueeze(-1) if vector else B
    solution = torch.linalg.lu_solve(lu, pivots, rhs, left=left)
    if vector:
        solution = solution.squeeze(-1)
        if solution.dim() > 1:  # the CPU stores a batch of vectors as one matrix, column-major
            solution = solution.mT.contiguous().mT
    return solution, lu, pivots, info


def _check_solve(a: torch.Tensor, b: torch.Tensor, left: bool, vector: bool) -> None:
    """Raise the CPU's errors in its order; its LU factorization rejects other dtypes."""
    what = "linalg.solve: "
    if not (a.is_floating_point() or a.is_complex()):
        raise INTEGER_SOLVE_ERROR(
            f"{what}Expected a floating point or complex tensor as input. Got {scalar_type(a.dtype)}"
        )
    if a.dtype != b.dtype:
        types = f"found A of type {scalar_type(a.dtype)} and B of type {scalar_type(b.dtype)} instead"
        raise RuntimeError(f"{what}Expected A and B to have the same dtype, but {types}")
    if a.dim() < 2:
        raise RuntimeError(what + "The input tensor A must have at least 2 dimensions.")
    (m, n), shape = a.shape[-2:], (*b.shape, 1) if vector else b.shape
    if m != n:
        raise RuntimeError(f"{what}A must be batches of square matrices, but they are {m} by {n} matrices")
    if len(shape) < 2:
        raise RuntimeError(what + "The input tensor B must have at least 2 dimensions.")
    if shape[-2 if left else -1] != n:
        equation = f"{'AX = B' if left else 'XA = B'} ({m}x{n} and {shape[-2]}x{shape[-1]})"
        raise RuntimeError(f"{what}Incompatible shapes of A and B for the equation {equation}")
    broadcast(shape[:-2], a.shape[:-2])
    if vector and not left:
        reason = "is not supported for left=False. In this case linalg.solve is equivalent to B / A.squeeze(-1)"
        raise RuntimeError(f"{what}Vector broadcasting of the left hand side {reason}")


def linalg_solve_triangular(self: torch.Tensor, B: torch.Tensor, **flags: bool) -> torch.Tensor:
    """The kernel of aten::linalg_solve_triangular. torch passes lazily conjugated and negated tensors."""
    operands = [t.resolve_conj().resolve_neg() for t in (self, B)]
    return kernel(aten.linalg_solve_triangular.default).call(*operands, **flags)


def _tolerances(
    matrix: torch.Tensor, atol: torch.Tensor | None, rtol: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the absolute and relative tolerance: 0 by default, and eps max(m, n) unless an absolute one is set."""
    real = matrix.real.dtype if matrix.is_complex() else matrix.dtype
    zero = torch.zeros((), dtype=real, device=matrix.device)
    if rtol is None:
        rtol = zero + torch.finfo(real).eps * max(matrix.shape[-2:])
        if atol is not None:
            rtol = torch.where(atol > 0, zero, rtol)
    return zero if atol is None else atol, rtol


def linalg_pinv(
    self: torch.Tensor, atol: torch.Tensor | None = None, rtol: torch.Tensor | None = None, hermitian: bool = False
) -> torch.Tensor:
    """The kernel of aten::linalg_pinv.atol_rtol_tensor: uses the singular values (or eigenvalues) above the
    tolerance."""
    if self.dim() < 2 or self.dtype not in LAPACK:
        raise RuntimeError(
            f"linalg.pinv({scalar_type(self.dtype)}{{{list(self.shape)}}}): expected a tensor with 2 or more "
            "dimensions of float, double, cfloat or cdouble types"
        )
    if self.numel() == 0:
        return self.new_empty((*self.shape[:-2], self.shape[-1], self.shape[-2]))
    absolute, relative = (t.unsqueeze(-1) for t in _tolerances(self, atol, rtol))
    if hermitian:
        values, left = torch.linalg.eigh(self)
        right = left
    else:
        left, values, vh = torch.linalg.svd(self, full_matrices=False)
        right = vh.mH
    size = values.abs()
    above = size > torch.maximum(absolute, relative * size.amax(-1, keepdim=True))
    inverse = torch.where(above, values.reciprocal(), torch.zeros_like(values))
    return (right * inverse.unsqueeze(-2)) @ left.mH


KERNELS: dict[str, Any] = {
    **least_squares.KERNELS,
    "_linalg_det": linalg_det,
    "_linalg_slogdet": linalg_slogdet,
    "_linalg_solve_ex": linalg_solve_ex,
    "linalg_solve_triangular": linalg_solve_triangular,
    "linalg_pinv.atol_rtol_tensor": linalg_pinv,
}
