"""Shapes, strides and errors of linear algebra where torch's meta functions are missing, or differ from the CPU's
kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.inference.indexing import scalar_type
from lazytpu.frontend.inference.infer import OVERRIDES, override
from lazytpu.frontend.torch_private import CHOLESKY

aten = torch.ops.aten


def column_major(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a meta tensor of matrices in LAPACK's order."""
    return torch.empty((*shape[:-2], shape[-1], shape[-2]), dtype=dtype, device="meta").mT


def broadcast(*shapes: tuple[int, ...]) -> torch.Size:
    """Return the broadcast shape. Raises the CPU's error, whose text differs from that in `torch.broadcast_shapes`."""
    return torch.broadcast_tensors(*[torch.empty(shape, device="meta") for shape in shapes])[0].shape


@override("aten.geqrf.default")
def geqrf(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """torch has no meta function for it: return factors in column-major order, as from LAPACK, and tau."""
    factors = torch.empty_like(self.mT, memory_format=torch.contiguous_format).mT
    return factors, self.new_empty((*self.shape[:-2], min(self.shape[-2:])))


@override("aten._linalg_check_errors.default")
def check_errors(**arguments: Any) -> tuple[()]:
    """Do nothing: it returns nothing, and cannot check without values."""
    return ()


@override("aten.linalg_eig.default")
def eig(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The eigenvectors are in column-major order."""
    values, vectors = aten.linalg_eig.default(self)
    return values, column_major(tuple(vectors.shape), vectors.dtype)


@override("aten._linalg_svd.default")
def svd(**arguments: Any) -> tuple[torch.Tensor, ...]:
    """Vᴴ is in column-major order, too."""
    if arguments.get("driver") is not None:
        raise RuntimeError(
            "torch.linalg.svd: keyword argument `driver=` is only supported on CUDA inputs with cuSOLVER backend."
        )
    u, values, vh = aten._linalg_svd.default(**arguments)
    return u, values, column_major(tuple(vh.shape), vh.dtype) if vh.dim() > 1 else vh


# -- dtypes without a CPU kernel


def refuse(op: OpOverload, argument: str, kernel: str, accepted: Callable[[torch.dtype], bool]) -> None:
    """Let `op` reject a dtype of `argument` as the CPU's `kernel` does, after torch's own checks."""
    inner = OVERRIDES.get(str(op), op)

    def check(**arguments: Any) -> Any:
        results = inner(**arguments)
        dtype = arguments[argument].dtype
        if not accepted(dtype):
            raise NotImplementedError(f"\"{kernel}\" not implemented for '{scalar_type(dtype)}'")
        return results

    OVERRIDES[str(op)] = check


LAPACK = frozenset((torch.float32, torch.float64, torch.complex64, torch.complex128))

for _op, _argument, _kernel in (
    (aten._cholesky_solve_helper.default, "self", "cholesky_solve_cpu"),
    (aten._linalg_eigh.default, "A", "linalg_eigh_cpu"),
    (aten._linalg_eigvals.default, "self", "linalg_eig_out_cpu"),
    (aten._linalg_svd.default, "A", "linalg_svd_cpu"),
    (aten.cholesky_inverse.default, "self", "cholesky_inverse_out_cpu"),
    (aten.geqrf.default, "self", "geqrf_cpu"),
    (aten.linalg_cholesky_ex.default, "self", "cholesky_cpu"),
    (aten.linalg_eig.default, "self", "linalg_eig_out_cpu"),
    (aten.linalg_householder_product.default, "input", "orgqr_cpu"),
    (aten.linalg_ldl_factor_ex.default, "self", "ldl_factor_kernel_cpu"),
    (aten.linalg_ldl_solve.default, "LD", "ldl_solve_kernel_cpu"),
    (aten.linalg_lu.default, "A", "lu_cpu"),
    (aten.linalg_lu_factor_ex.default, "A", "lu_cpu"),
    (aten.linalg_lu_solve.default, "LU", "linalg.lu_solve_cpu"),
    (aten.linalg_qr.default, "A", "geqrf_cpu"),
    (aten.linalg_solve_triangular.default, "self", "triangular_solve_cpu"),
    (aten.ormqr.default, "self", "ormqr_cpu"),
    (aten.triangular_solve.default, "self", "triangular_solve_cpu"),
):
    refuse(_op, _argument, _kernel, LAPACK.__contains__)
for _op in CHOLESKY:
    refuse(_op, "self", "cholesky_cpu", LAPACK.__contains__)

for _op, _argument, _kernel in (
    (aten.linalg_cross.default, "self", "cross"),
    (aten.trace.default, "self", "trace"),
):
    refuse(_op, _argument, _kernel, lambda dtype: dtype != torch.bool)

refuse(aten._pdist_forward.default, "self", "pdist", (torch.float32, torch.float64).__contains__)


def _pivoted(op: OpOverload) -> None:
    inner = OVERRIDES[str(op)]

    def check(**arguments: Any) -> Any:
        if not arguments.get("pivot", True):
            raise RuntimeError("linalg.lu_factor: LU without pivoting is not implemented on 'tpu', as on the CPU")
        return inner(**arguments)

    OVERRIDES[str(op)] = check


_pivoted(aten.linalg_lu.default)
_pivoted(aten.linalg_lu_factor_ex.default)
