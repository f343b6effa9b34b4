"""torch.linalg.lstsq with every driver, compared with LAPACK on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch.linalg import LinAlgError  # pyright: ignore[reportAttributeAccessIssue]

import lazytpu

lstsq = torch.linalg.lstsq


def same(a: torch.Tensor, b: torch.Tensor, **options: object) -> None:
    """Check that every result equals the CPU's, including its layout."""
    want = lstsq(a, b, **options)
    for got, expected in zip(lstsq(a.to("tpu"), b.to("tpu"), **options), want, strict=True):
        assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 5)], ids=str)
def test_drivers(shape: tuple[int, ...], driver: str) -> None:
    torch.manual_seed(0)
    a = torch.randn(shape, dtype=torch.complex64)
    same(a, torch.randn(*shape[:-1], 2, dtype=torch.complex64), driver=driver)
    same(a, torch.randn(shape[:-1], dtype=torch.complex64), driver=driver)


def test_ranks_decide_about_residuals() -> None:
    torch.manual_seed(0)
    a = torch.randn(5, 3)
    a[:, 2] = a[:, 0] + a[:, 1]
    device = lstsq(a.to("tpu"), torch.ones(5, 2, device="tpu"), driver="gelsd")
    assert device.rank.item() == 2 and device.residuals.shape == (0,)
    same(torch.diag(torch.tensor([4.0, 2.0, 1.0])), torch.ones(3, 1), driver="gelss", rcond=0.3)


@pytest.mark.parametrize("driver", ["gels", "gelsd"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_empty(shape: tuple[int, ...], driver: str) -> None:
    same(torch.empty(shape), torch.randn(shape[0], 2), driver=driver)


def test_gradients_and_no_cut() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 5, 3), torch.randn(2, 5, 2)
    gradients: list[list[torch.Tensor]] = []
    before = lazytpu.metrics()["steps"]
    for device in ("tpu", "cpu"):
        x, y = (t.clone().to(device).requires_grad_() for t in (a, b))
        lstsq(x, y).solution.square().sum().backward()
        if device == "tpu":
            assert lazytpu.metrics()["steps"] == before
        gradients.append([t.grad.cpu() for t in (x, y) if t.grad is not None])
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_out() -> None:
    a, b = torch.arange(6.0, device="tpu").reshape(3, 2).sin(), torch.ones(3, 1, device="tpu")
    out = [torch.empty(0, device="tpu", dtype=d) for d in (torch.float32, torch.float32, torch.int64, torch.float32)]
    lstsq(a, b, out=tuple(out))
    want = lstsq(a.cpu(), b.cpu())
    assert out[0].stride() == want.solution.stride()
    torch.testing.assert_close(out[0].cpu(), want.solution, rtol=1e-3, atol=1e-3)


def test_arguments_that_do_not_fit() -> None:
    a = torch.ones(3, 3, device="tpu")
    for args in [(a[0], a[0]), (a, a[0, 0]), (a, a.double()), (a, a[:2]), (a.half(), a.half())]:
        with pytest.raises(RuntimeError):
            lstsq(*args)
    with pytest.raises(RuntimeError, match="driver"):
        lstsq(a, a, driver="qr")


def test_a_rank_that_gels_needs() -> None:
    result = lstsq(torch.zeros(3, 2, device="tpu"), torch.ones(3, 1, device="tpu"), driver="gels")
    with pytest.raises(LinAlgError, match="full rank"):
        result.solution.cpu()


@pytest.mark.parametrize(("rows", "columns"), [(20, 10), (10, 20), (100, 50), (30, 30)])
@pytest.mark.parametrize("driver", ["gels", "gelsy"])
def test_errors_are_at_most_twice_those_of_the_cpu(rows: int, columns: int, driver: str) -> None:
    """Summed over matrices of some seeds, since single errors vary."""
    sums = [0.0, 0.0]
    for seed in range(8):
        torch.manual_seed(seed)
        a, right = torch.randn(rows, columns), torch.randn(rows, 3)
        exact = torch.linalg.lstsq(a.double(), right.double()).solution
        for i, device in enumerate(("cpu", "tpu")):
            solution = torch.linalg.lstsq(a.to(device), right.to(device), driver=driver).solution
            sums[i] += (solution.cpu() - exact).abs().max().item()
    assert sums[1] <= 2 * sums[0]
