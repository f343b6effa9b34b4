"""Determinants, solves and pseudo-inverses, with gradients, of contiguous and transposed matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lazytpu.frontend import activation

L = torch.linalg
IN_TORCH = hasattr(torch.ops.aten, "cholesky")  # before torch 2.14
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
    matrices, rhs = torch.randn(2, 4, 4), torch.randn(2, 4, 3)
    results: dict[str, list[torch.Tensor]] = {}
    for device in ("cpu", "tpu"):
        a, b = (x.clone().to(device).requires_grad_() for x in (matrices, rhs))
        result = OPS[name](a.mT if flipped else a, b)
        result.pow(2).sum().backward()
        results[device] = [t.detach().cpu() for t in (result, a.grad, b.grad) if t is not None]
    for got, want in zip(results["tpu"], results["cpu"], strict=True):
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)


REFUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "inv": lambda x: L.inv(x[0]),
    "inv_ex": lambda x: L.inv_ex(x[0], check_errors=True),
    "solve": lambda x: L.solve(x[0], x[1]),
    "matrix_power": lambda x: L.matrix_power(x[0], -1),
    "lu_factor": lambda x: L.lu_factor(x[0]),
    "cholesky": lambda x: L.cholesky(x[1]),
    "cholesky_ex": lambda x: L.cholesky_ex(x[1], check_errors=True),
    **({"torch.cholesky": lambda x: x[1].cholesky()} if IN_TORCH else {}),
    "cholesky_inverse": lambda x: torch.cholesky_inverse(x[0]),
    "svd": lambda x: L.svd(x[2]),
    "svdvals": lambda x: L.svdvals(x[2]),
    "eigh": lambda x: L.eigh(x[2]),
    "eig": lambda x: L.eig(x[2]),
    "ldl_factor": lambda x: L.ldl_factor(x[0]),
}


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
@pytest.mark.parametrize("name", REFUSED)
def test_an_unsuitable_matrix_raises_when_the_result_is_read(name: str) -> None:
    x = torch.stack([torch.zeros(3, 3), -torch.eye(3), torch.full((3, 3), torch.nan)])
    with pytest.raises(RuntimeError) as refusal:
        REFUSED[name](x)
    result: Any = REFUSED[name](x.to("tpu"))
    with pytest.raises(RuntimeError) as error:
        (result if isinstance(result, torch.Tensor) else result[0]).cpu()
    assert error.type is refusal.type


def test_a_batch_of_vectors_is_column_major() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 3), torch.randn(2, 3)
    got, want = L.solve(a.to("tpu"), b.to("tpu")), L.solve(a, b)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
@pytest.mark.parametrize("op", [*([torch.cholesky] if IN_TORCH else []), L.cholesky])
def test_layouts_of_resized_results(op: Callable[..., torch.Tensor]) -> None:
    out, want = torch.empty(0, device="tpu"), torch.empty(0)
    op(torch.eye(3, device="tpu"), upper=True, out=out)
    op(torch.eye(3), upper=True, out=want)
    assert out.stride() == want.stride()
    assert torch.equal(out.cpu(), want)


def test_conjugated_triangles() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(3, 3, dtype=torch.complex64), torch.randn(3, 2, dtype=torch.complex64)
    got = L.solve_triangular(a.to("tpu").mH, b.to("tpu").conj(), upper=True).cpu()
    torch.testing.assert_close(got, L.solve_triangular(a.mH, b.conj(), upper=True), rtol=1e-3, atol=1e-3)


HALF, WHOLE, ROW, RECT = torch.eye(3).half(), torch.eye(3, dtype=torch.int64), torch.ones(3), torch.ones(3, 4)
AT_ONCE: dict[str, tuple[Callable[[torch.Tensor], object], torch.Tensor]] = {
    "det of rows": (L.det, ROW),
    "det of half": (L.det, HALF),
    "slogdet of half": (L.slogdet, HALF),
    "slogdet of a rectangle": (L.slogdet, RECT),
    "cholesky of half": (L.cholesky, HALF),
    "eigh of integers": (L.eigh, WHOLE),
    "svd by a driver": (lambda x: L.svd(x, driver="gesvd"), RECT),
    "svd of half": (L.svd, HALF),
    "pinv of half": (L.pinv, HALF),
    "pinv of rows": (L.pinv, ROW),
    "lu without pivots": (lambda x: L.lu(x, pivot=False), RECT),
    "lu_factor without pivots": (lambda x: L.lu_factor(x, pivot=False), RECT),
    "lu of integers": (L.lu, WHOLE),
    "qr of half": (L.qr, HALF),
    "ldl_factor of half": (L.ldl_factor, HALF),
    "matrix_power of a rectangle": (lambda x: L.matrix_power(x, 2), RECT),
}


@pytest.mark.parametrize("name", AT_ONCE)
def test_arguments_that_the_cpu_rejects_are_rejected_at_the_call(name: str) -> None:
    op, x = AT_ONCE[name]
    with pytest.raises(RuntimeError) as refusal:
        op(x)
    with pytest.raises(RuntimeError) as error:
        op(x.to("tpu"))
    assert error.type is refusal.type


def test_a_tpu_has_no_general_eigenvalues(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2, 2, device="tpu")
    monkeypatch.setattr(type(activation.device()), "platform", lambda _: "tpu")
    for op in (L.eig, L.eigvals):
        with pytest.raises(NotImplementedError, match="eigh"):
            op(x.expand(3, 2, 2))


@pytest.mark.parametrize("op", [torch.fft.fft, torch.fft.ifft, torch.fft.irfft])
def test_layouts_of_resized_transforms(op: Callable[..., torch.Tensor]) -> None:
    dtype = torch.float32 if op is torch.fft.irfft else torch.complex64
    x, out = torch.ones(2, 3, 4, dtype=torch.complex64), torch.empty(0, dtype=dtype, device="tpu")
    op(x.to("tpu"), dim=1, out=out)
    want = op(x, dim=1, out=torch.empty(0, dtype=dtype))
    assert out.stride() == want.stride()
    torch.testing.assert_close(out.cpu(), want)
