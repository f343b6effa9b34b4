"""Poisson, binomial, gamma and Dirichlet samples: moments, ranges, and derivatives against torch's CPU."""

from __future__ import annotations

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
N = 20000


def draw(op: torch._ops.OpOverload, *args: torch.Tensor, rng: tuple[int, int] = (1, 2)) -> torch.Tensor:
    out = torch.empty(torch.broadcast_shapes(*(a.shape for a in args)), dtype=args[0].dtype)
    return run(op, *args, outs=[out], rng=rng)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_poisson(dtype: torch.dtype) -> None:
    rate = torch.tensor([[0.0], [0.5], [4.0], [40.0]], dtype=dtype).expand(4, N).contiguous()
    drawn = draw(A.poisson.default, rate).double()
    torch.testing.assert_close(drawn.mean(1), rate[:, 0].double(), rtol=0.05, atol=0.0)
    torch.testing.assert_close(drawn.var(1), rate[:, 0].double(), rtol=0.05, atol=0.0)
    assert bool((drawn[0] == 0).all())


def test_binomial() -> None:
    count = torch.tensor([[10.0], [10.0], [10.0], [300.0]])
    p = torch.tensor([[0.0], [1.0], [0.3], [0.6]]).expand(4, N).contiguous()
    drawn = draw(A.binomial.default, count, p)
    torch.testing.assert_close(drawn.mean(1), torch.tensor([0.0, 10.0, 3.0, 180.0]), rtol=0.02, atol=0.0)
    torch.testing.assert_close(drawn.var(1), torch.tensor([0.0, 0.0, 2.1, 72.0]), rtol=0.05, atol=0.0)


def test_gamma() -> None:
    alpha = torch.tensor([[1e-3], [0.5], [1.0], [9.0]]).expand(4, N).contiguous()
    drawn = draw(A._standard_gamma.default, alpha)
    assert bool((drawn > 0).all())
    torch.testing.assert_close(drawn[1:].mean(1), alpha[1:, 0], rtol=0.03, atol=0.0)
    torch.testing.assert_close(drawn[1:].var(1), alpha[1:, 0], rtol=0.06, atol=0.0)
    check(A._standard_gamma_grad.default, alpha[1:, :50], drawn[1:, :50].contiguous(), rtol=2e-3, atol=1e-5)


def test_dirichlet() -> None:
    alpha = torch.tensor([0.1, 1.0, 3.0]).expand(N, 3).contiguous()
    drawn = draw(A._sample_dirichlet.default, alpha)
    assert bool(((drawn > 0) & (drawn < 1)).all())
    torch.testing.assert_close(drawn.sum(1), torch.ones(N))
    torch.testing.assert_close(drawn.mean(0), alpha[0] / 4.1, rtol=0.05, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dirichlet_grad(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    alpha = torch.cat([torch.rand(200) * 2, torch.rand(200) * 30, torch.rand(200) * 300]).to(dtype)
    beta = alpha.flip(0) * torch.rand(600, dtype=dtype) + 0.1
    x = torch.distributions.Beta(alpha, beta).sample().clamp(1e-6, 1 - 1e-6)
    check(A._dirichlet_grad.default, x, alpha, alpha + beta, rtol=1e-3, atol=1e-5)


def test_streams() -> None:
    rate = torch.full((100,), 3.0)
    first = draw(A.poisson.default, rate, rng=(1, 2))
    assert torch.equal(first, draw(A.poisson.default, rate, rng=(1, 2)))
    assert not torch.equal(first, draw(A.poisson.default, rate, rng=(1, 3)))
