"""Determinants, solves and pseudo-inverses, and their gradients, of contiguous and transposed matrices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.linalg import LinAlgError  # pyright: ignore[reportAttributeAccessIssue]

L = torch.linalg
OPS: dict[str, Callable[..., torch.Tensor]] = {
    "det": lambda a, b: L.det(a),
    "slogdet": lambda a, b: L.slogdet(a)[1],
    "solve": lambda a, b: L.solve(a, b),
    "solve from the right": lambda a, b: L.solve(a, b.mT, left=False),
    "solve a vector": lambda a, b: L.solve(a[0], b[0, :, 0]),
    "inv": lambda a, b: L.inv(a),
    "pinv": lambda a, b: L.pinv(b),
    "pinv, hermitian": lambda a, b: L.pinv(a + a.mT, hermitian=True),
    "cholesky": lambda a, b: L.cholesky(a @ a.mT + 4 * torch.eye(4, device=a.device)),
    "lstsq by pinv": lambda a, b: L.pinv(b) @ b,
}


@pytest.mark.parametrize("flipped", [False, True], ids=["contiguous", "transposed"])
@pytest.mark.parametrize("name", OPS)
def test_values_and_gradients(name: str, flipped: bool) -> None:
    torch.manual_seed(1)
    whole, rhs = torch.randn(2, 4, 4), torch.randn(2, 4, 3)
    found: dict[str, list[torch.Tensor]] = {}
    for device in ("cpu", "tpu"):
        a, b = (x.clone().to(device).requires_grad_() for x in (whole, rhs))
        result = OPS[name](a.mT if flipped else a, b)
        result.pow(2).sum().backward()
        found[device] = [t.detach().cpu() for t in (result, a.grad, b.grad) if t is not None]
    for got, want in zip(found["tpu"], found["cpu"], strict=True):
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)


def test_a_singular_matrix_is_refused_at_the_next_read() -> None:
    found = L.inv(torch.zeros(3, 3, device="tpu"))
    with pytest.raises(LinAlgError, match="singular"):
        found.cpu()
    found = L.cholesky(-torch.eye(2, device="tpu"))
    with pytest.raises(LinAlgError, match="positive-definite"):
        found.cpu()


def test_conjugated_triangles() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(3, 3, dtype=torch.complex64), torch.randn(3, 2, dtype=torch.complex64)
    got = L.solve_triangular(a.to("tpu").mH, b.to("tpu").conj(), upper=True).cpu()
    torch.testing.assert_close(got, L.solve_triangular(a.mH, b.conj(), upper=True), rtol=1e-3, atol=1e-3)
