"""Checks of a factorization's info, with torch's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.registry import rule

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

# Word in the op's name -> reason, as in torch's `_linalg_check_errors`. Unlike torch's, these name no element.
REASONS = {
    "inv": "A diagonal element is zero, the inversion could not be completed because the input matrix is singular.",
    "solve": "The solver failed because the input matrix is singular.",
    "cholesky": "The factorization could not be completed because the input is not positive-definite.",
    "eig": "The algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated "
    "eigenvalues.",
    "svd": "The algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated "
    "singular values.",
    "lstsq": "The least squares solution could not be computed because the input matrix does not have full rank.",
    "lu_factor": "A diagonal element of U is zero and using it on lu_solve would result in a division by zero. If you "
    "still want to perform the factorization, consider calling linalg.lu(A, pivot) or linalg.lu_factor_ex(A, pivot)",
}


def check_info(b: Builder, info: SSAValue, name: str) -> None:
    """Register the check that all of `info` is 0, which raises torch's error, mostly LinAlgError. `name` is the op's
    public name."""
    reason = next((text for word, text in REASONS.items() if word in name), None)
    message = f"{name}: {reason or 'The factorization could not be completed: its info is not 0.'}"
    linalg = reason is not None and "lu_factor" not in name
    b.check(b.compare("EQ", info, full(b, 0, info)), message, error="LinAlgError" if linalg else "RuntimeError")


@rule("aten._linalg_check_errors.default")
def linalg_check_errors(b: Builder, info: SSAValue, api_name: str, *, is_matrix: bool) -> tuple[()]:
    """Only the check."""
    check_info(b, info, api_name)
    return ()
