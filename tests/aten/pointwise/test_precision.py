"""Functions that XLA, or a decomposition, computes inexactly: errors against float64 and mpmath, in ulp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

import lazytpu

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def strict():
    """Run each op as a separate program."""
    with lazytpu.mode("strict"):
        yield


def _errors(x: torch.Tensor, exact: list[Any]) -> float:
    """Return the largest error in ulp of x's dtype."""
    eps = torch.finfo(x.dtype).eps
    return max(
        float(abs(mpmath.mpf(a) - e) / (mpmath.mpf(2) ** (mpmath.frexp(e)[1] - 1) * eps))
        for a, e in zip(x.tolist(), exact, strict=True)
    )


@pytest.mark.parametrize(
    ("function", "exact", "low", "high", "ulp"),
    [
        (torch.lgamma, mpmath.loggamma, 0.01, 30.0, 5),
        (torch.log1p, lambda x: mpmath.log(1 + x), -0.9, 3.0, 3),
        (torch.atanh, mpmath.atanh, -0.95, 0.95, 4),
        (torch.special.modified_bessel_k0, lambda x: mpmath.besselk(0, x), 0.1, 9.0, 12),
        (torch.special.modified_bessel_k1, lambda x: mpmath.besselk(1, x), 0.1, 9.0, 12),
        (torch.special.log_ndtr, lambda x: mpmath.log(mpmath.erfc(-x / mpmath.sqrt(2)) / 2), -9.0, 4.0, 60),
        (lambda x: torch.polygamma(1, x), lambda x: mpmath.polygamma(1, x), 0.5, 20.0, 6),
    ],
)
def test_error_in_float64(function: Function, exact: Callable[..., Any], low: float, high: float, ulp: float):
    x = torch.linspace(low, high, 101, dtype=torch.float64)
    with mpmath.workdps(40):
        wanted = [exact(mpmath.mpf(value)) for value in x.tolist()]
        assert _errors(function(x.to("tpu")).cpu(), wanted) <= ulp


def test_lgamma_at_its_limits():
    x = torch.tensor([1.0, 2.0, 0.0, -0.0, -3.0, 1e-30, -1e-30, 1e30, torch.inf, -torch.inf, torch.nan, -2.5])
    torch.testing.assert_close(torch.lgamma(x.to("tpu")).cpu(), torch.lgamma(x), rtol=1e-6, atol=0, equal_nan=True)


def test_lgamma_near_its_zeros():
    x = torch.tensor([1.0, 2.0, 0.999999, 1.000001, 0.99, 1.999999, 2.000001])
    got, exact = torch.lgamma(x.to("tpu")).cpu(), torch.lgamma(x.double())
    assert not got.signbit()[:2].any()
    torch.testing.assert_close(got.double(), exact, rtol=2e-6, atol=0)


def test_log1p_and_atanh_at_their_limits():
    x = torch.tensor([0.0, -0.0, -1.0, 1.0, -2.0, 1e-300, -1e-20, torch.inf, torch.nan], dtype=torch.float64)
    for function in (torch.log1p, torch.atanh):
        got, want = function(x.to("tpu")).cpu(), function(x)
        torch.testing.assert_close(got, want, rtol=1e-15, atol=0, equal_nan=True)
        assert torch.equal(got[:2].signbit(), want[:2].signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tanh_reaches_one(dtype: torch.dtype):
    x = torch.tensor([20.0, -20.0, torch.inf, -torch.inf, -0.0, torch.nan], dtype=dtype)
    got = torch.tanh(x.to("tpu")).cpu()
    torch.testing.assert_close(got, torch.tanh(x), rtol=0, atol=0, equal_nan=True)
    gelu = torch.nn.functional.gelu(torch.full((3,), -9.0, dtype=dtype, device="tpu"), approximate="tanh")
    assert torch.equal(gelu.cpu(), torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize("function", [torch.nn.functional.mish, torch.nn.functional.silu])
def test_gradients_of_activations_at_their_limits(function: Function):
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 20.0, 21.0, 1e30, -1e30, 0.0, -0.0])
    gradients: list[torch.Tensor] = []
    for leaf in (x.clone(), x.to("tpu")):
        leaf.requires_grad_()
        function(leaf).sum().backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0], equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", [torch.nn.functional.mish, torch.nn.functional.silu])
def test_gradients_of_activations_in_half_precision(dtype: torch.dtype, function: Function):
    x = torch.linspace(-9, 30, 401).to(dtype)
    gradients = []
    for leaf in (x.clone(), x.to("tpu"), x.double()):
        leaf.requires_grad_()
        function(leaf).sum().backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad.cpu().double())
    cpu, tpu, exact = gradients
    assert ((tpu - exact).abs() <= 2 * (cpu - exact).abs() + torch.finfo(dtype).eps * exact.abs() + 1e-7).all()


@pytest.mark.parametrize(
    "polynomial",
    [
        torch.special.chebyshev_polynomial_t,
        torch.special.hermite_polynomial_h,
        pytest.param(torch.special.laguerre_polynomial_l, marks=pytest.mark.long),  # seconds in torch itself
        torch.special.legendre_polynomial_p,
    ],
)
@pytest.mark.parametrize("degree", [2.0**31, 1e30])
def test_recurrences_of_extreme_degree_end(polynomial: Callable[..., torch.Tensor], degree: float):
    x, n = torch.tensor([1.5, -2.0, torch.nan]), torch.tensor(degree)
    got = polynomial(x.to("tpu"), n.to("tpu")).cpu()
    torch.testing.assert_close(got, polynomial(x, n), rtol=0, atol=0, equal_nan=True)
