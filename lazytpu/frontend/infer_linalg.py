"""Shapes, strides and errors of linear algebra where torch's meta functions miss, or differ from the CPU's kernels."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend import device_port
from lazytpu.frontend.infer import override

aten = torch.ops.aten


def column_major(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A meta tensor of matrices in LAPACK's order."""
    return torch.empty((*shape[:-2], shape[-1], shape[-2]), dtype=dtype, device="meta").mT


@override("aten.geqrf.default")
def geqrf(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """torch has no meta function of it: factors in column-major order, as LAPACK's, and tau."""
    factors = torch.empty_like(self.mT, memory_format=torch.contiguous_format).mT
    return factors, self.new_empty((*self.shape[:-2], min(self.shape[-2:])))


@override("aten._linalg_check_errors.default")
def check_errors(**arguments: Any) -> tuple[()]:
    """It returns nothing, and cannot know more without values."""
    return ()


def _require_general_eigenvalues(name: str) -> None:
    platform = device_port.device().properties().platform
    if platform == "tpu":
        raise NotImplementedError(
            f"{name}: XLA has no eigenvalues of general matrices on a TPU. Use torch.linalg.eigh where the matrix is "
            "symmetric or Hermitian, or compute them on the CPU: x.cpu()"
        )


@override("aten.linalg_eig.default")
def eig(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eigenvectors in column-major order."""
    _require_general_eigenvalues("torch.linalg.eig")
    values, vectors = aten.linalg_eig.default(self)
    return values, column_major(tuple(vectors.shape), vectors.dtype)


@override("aten._linalg_eigvals.default")
def eigvals(self: torch.Tensor) -> torch.Tensor:
    """As torch's meta function has it."""
    _require_general_eigenvalues("torch.linalg.eigvals")
    return aten._linalg_eigvals.default(self)


@override("aten._linalg_svd.default")
def svd(**arguments: Any) -> tuple[torch.Tensor, ...]:
    """Vᴴ in column-major order too."""
    u, values, vh = aten._linalg_svd.default(**arguments)
    return u, values, column_major(tuple(vh.shape), vh.dtype) if vh.dim() > 1 else vh
