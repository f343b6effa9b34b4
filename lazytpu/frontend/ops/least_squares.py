"""torch.linalg.lstsq, recorded as the factorization of its driver."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.inference.indexing import scalar_type
from lazytpu.frontend.inference.linalg import LAPACK, broadcast

DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


def linalg_lstsq(
    self: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, ...]:
    """The kernel of aten::linalg_lstsq: (solution, residuals, rank, singular values); each driver leaves some of them
    empty.

    "gels" uses a QR factorization and assumes full rank; the others use the singular values above rcond times the
    largest. "gelsd" and "gelss" return residuals only if all ranks are full, so the ranks are read (a cut).
    """
    name = _check(self, b, driver)
    vector = self.dim() - 1 == b.dim()
    rhs = b.unsqueeze(-1) if vector else b
    m, n = self.shape[-2:]
    real = self.real.dtype if self.is_complex() else self.dtype
    batch = broadcast(self.shape[:-2], rhs.shape[:-2])
    residuals, values = (torch.empty(0, dtype=real, device=self.device) for _ in range(2))
    rank = torch.empty(0, dtype=torch.int64, device=self.device)
    if self.numel() == 0:
        solution = self.new_zeros((*batch, n, rhs.shape[-1]))
        if name != "gels":
            rank = torch.zeros(self.shape[:-2], dtype=torch.int64, device=self.device)
        if name in ("gelsd", "gelss"):
            values = values.new_empty((*self.shape[:-2], 0))
    elif name == "gels":
        solution = _by_qr(self, rhs)
    else:
        if rcond is None:
            rcond = torch.finfo(real).eps * max(m, n)
        elif rcond < 0 or (name == "gelsd" and not 0 < rcond < 1):
            rcond = torch.finfo(real).eps
        solution, rank, singular = _by_svd(self, rhs, rcond)
        if name != "gelsy":
            values = singular
    if m > n and (name == "gels" or (name != "gelsy" and bool((rank == n).all()))):
        error = rhs - self @ solution if n or name != "gels" else torch.zeros_like(rhs)  # LAPACK omits it in that case
        residuals = (error.real.square() + error.imag.square() if error.is_complex() else error.square()).sum(-2)
        residuals = residuals.expand(*batch, rhs.shape[-1]).contiguous()
    return _in_place_of(solution, max(m, n), vector), residuals, rank, values


def _check(a: torch.Tensor, b: torch.Tensor, driver: str | None) -> str:
    """Return the driver. Raises RuntimeError as the CPU does for invalid arguments."""
    what = "torch.linalg.lstsq: "
    if a.dim() < 2:
        raise RuntimeError(what + "input must have at least 2 dimensions.")
    if b.dim() < 1:
        raise RuntimeError(what + "other must have at least 1 dimension.")
    if a.dtype != b.dtype:
        raise RuntimeError(
            f"{what}Expected input and other to have the same dtype, but got input's dtype {scalar_type(a.dtype)} "
            f"and other's dtype {scalar_type(b.dtype)}"
        )
    if a.dim() - b.dim() not in (0, 1):
        raise RuntimeError(
            what + "input.dim() must be greater or equal to other.dim() and (input.dim() - other.dim()) <= 1"
        )
    place = -1 if b.dim() == 1 or b.shape == a.shape[:-1] else -2
    if a.shape[-2] != b.shape[place]:
        raise RuntimeError(f"{what}input.size(-2) should match other.size({place})")
    broadcast(a.shape[:-2], b.shape[: -1 if a.dim() > b.dim() else -2])
    if a.dtype not in LAPACK:
        raise RuntimeError("This function doesn't handle types other than float and double")
    name = "gelsy" if driver is None else driver.lower()
    if name not in DRIVERS:
        raise RuntimeError(f"{what}parameter `driver` should be one of ({', '.join(DRIVERS)})")
    return name


def _by_qr(a: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    """Return the least-squares or minimum-norm solution for a matrix of full rank."""
    tall = a.shape[-2] >= a.shape[-1]
    q, r = torch.linalg.qr(a if tall else a.mH)
    zeros = r.diagonal(dim1=-2, dim2=-1) == 0
    info = torch.where(zeros.any(-1), zeros.to(torch.int8).argmax(-1) + 1, 0).to(torch.int32)
    torch.ops.aten._linalg_check_errors.default(info, "torch.linalg.lstsq", is_matrix=a.dim() == 2)
    r = torch.where((info < 0)[..., None, None], 0, r)  # never true: it makes the result depend on the check
    if tall:
        return torch.linalg.solve_triangular(r, q.mH @ rhs, upper=True)
    return q @ torch.linalg.solve_triangular(r.mH, rhs, upper=False)


def _by_svd(a: torch.Tensor, rhs: torch.Tensor, rcond: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (the minimum-norm least-squares solution, ranks, singular values).

    XLA's singular vectors are less accurate than LAPACK's factors: a step of refinement makes up for it.
    """
    u, values, vh = torch.linalg.svd(a, full_matrices=False)
    above = values > (values[..., :1] * rcond).clamp(min=torch.finfo(values.dtype).tiny)
    inverse = torch.where(above, values, 1).reciprocal() * above

    def solved(right: torch.Tensor) -> torch.Tensor:
        return vh.mH @ (inverse.unsqueeze(-1) * (u.mH @ right))

    solution = solved(rhs)
    correction = solved(rhs - a @ solution)
    solution = torch.where(correction.isfinite(), solution + correction, solution)
    return solution, above.sum(-1), values


def _in_place_of(solution: torch.Tensor, rows: int, vector: bool) -> torch.Tensor:
    """Return the solution as LAPACK stores it: column-major, in the first rows of the right-hand sides' memory."""
    n, memory = solution.shape[-2], solution.mT.clone(memory_format=torch.contiguous_format)
    if n < rows:
        memory = torch.nn.functional.pad(memory, (0, rows - n))
    solution = memory.mT[..., :n, :]
    return solution.squeeze(-1) if vector else solution


KERNELS: dict[str, Any] = {"linalg_lstsq": linalg_lstsq}
