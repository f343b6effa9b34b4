"""Random ops: ranges, moments, streams. Values differ from the CPU's by design, so distributions are compared."""

from __future__ import annotations

from math import inf, pi

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SHAPE = (100, 200)


def draw(op: torch._ops.OpOverload, *args: object, rng: tuple[int, int] = (7, 1), outs: object = (), **kw: object):
    return run(op, *args, outs=list(outs), rng=rng, numbers=True, **kw)


def one(op: torch._ops.OpOverload, dtype: torch.dtype, *args: object) -> torch.Tensor:
    (result,) = draw(op, torch.empty(SHAPE, dtype=dtype), *args)
    assert result.dtype == dtype
    assert result.shape == SHAPE
    return result


def quantiles(x: torch.Tensor) -> torch.Tensor:
    return x.double().flatten().quantile(torch.tensor([0.01, 0.25, 0.5, 0.75, 0.99], dtype=torch.float64))


def agrees(x: torch.Tensor, reference: torch.distributions.Distribution) -> None:
    """Check that each fifth of the distribution has a fifth of the numbers."""
    counts = torch.histc(reference.cdf(x.double().flatten()), 5, 0, 1)
    torch.testing.assert_close(counts, torch.full_like(counts, x.numel() / 5), rtol=0.06, atol=0.0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_continuous(dtype: torch.dtype) -> None:
    D = torch.distributions
    u = one(A.uniform_.default, dtype, 0.0, 1.0)
    assert u.min() >= 0
    assert u.max() < 1
    agrees(u, D.Uniform(0.0, 1.0))
    shifted = one(A.uniform_.default, dtype, -1.0, 3.0)
    assert shifted.min() >= -1
    assert shifted.max() < 3
    agrees(shifted, D.Uniform(-1.0, 3.0))
    agrees(one(A.normal_.default, dtype, 1.0, 2.0), D.Normal(1.0, 2.0))
    agrees(one(A.log_normal_.default, dtype, 0.0, 0.5), D.LogNormal(0.0, 0.5))
    exponential = one(A.exponential_.default, dtype, 2.0)
    assert exponential.min() > 0
    agrees(exponential, D.Exponential(2.0))
    agrees(one(A.cauchy_.default, dtype, 1.0, 2.0), D.Cauchy(1.0, 2.0))


def test_resolution() -> None:
    u = one(A.uniform_.default, torch.float32, 0.0, 1.0).double()
    assert torch.equal(u * 2**24, (u * 2**24).round())
    assert not torch.equal(u * 2**22, (u * 2**22).round())
    u = one(A.uniform_.default, torch.float64, 0.0, 1.0)
    assert torch.equal(u * 2.0**53, (u * 2.0**53).round())
    assert u.unique().numel() == u.numel()


def test_complex_normal() -> None:
    z = one(A.normal_.default, torch.complex64, 0.0, 2.0)
    for component in (z.real, z.imag):
        agrees(component, torch.distributions.Normal(0.0, 2.0**0.5))
    assert abs(torch.corrcoef(torch.stack([z.real.flatten(), z.imag.flatten()]))[0, 1]) < 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int32, torch.bfloat16], ids=str)
def test_bernoulli(dtype: torch.dtype) -> None:
    assert abs(one(A.bernoulli_.float, dtype, 0.3).double().mean() - 0.3) < 0.01
    assert not one(A.bernoulli_.float, dtype, 0.0).any()
    assert one(A.bernoulli_.float, dtype, 1.0).all()


def test_bernoulli_of_tensors() -> None:
    p = torch.tensor([0.0, 0.25, 1.0]).repeat(5000, 1)
    for op, args in ((A.bernoulli.default, (p,)), (A.bernoulli.Tensor, (torch.empty(5000, 3), p))):
        (drawn,) = draw(op, *args, outs=[p])
        torch.testing.assert_close(drawn.mean(0), p[0], rtol=0.0, atol=0.02)
    (drawn,) = draw(A.bernoulli_.Tensor, torch.empty(5000, 3, dtype=torch.int64), p.double())
    assert drawn[:, 2].all()
    (drawn,) = draw(A.bernoulli.p, p, 0.5, outs=[p])
    assert abs(drawn.mean() - 0.5) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16], ids=str)
def test_geometric(dtype: torch.dtype) -> None:
    trials = one(A.geometric_.default, dtype, 0.25).double()
    assert trials.min() == 1
    assert abs(trials.mean() - 4) < 0.1
    assert abs((trials == 1).double().mean() - 0.25) < 0.01
    assert (one(A.geometric_.default, dtype, 1.0) == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_dropout(dtype: torch.dtype) -> None:
    x = torch.randn(SHAPE).to(dtype)
    outs = [x, torch.empty(SHAPE, dtype=torch.bool)]
    y, mask = draw(A.native_dropout.default, x, 0.25, True, outs=outs)
    assert abs(mask.double().mean() - 0.75) < 0.02
    torch.testing.assert_close(y, (x * mask) / 0.75)
    y, mask = draw(A.native_dropout.default, x, 1.0, True, outs=outs)
    assert not mask.any()
    assert not y.any()
    y, mask = draw(A.native_dropout.default, x, 0.0, True, outs=outs)
    assert mask.all()
    assert torch.equal(y, x)
    y, mask = draw(A.native_dropout.default, x, 0.5, False, outs=outs)
    assert mask.all()
    assert torch.equal(y, x)
    empty = torch.empty(0, 3, dtype=dtype)
    assert draw(A.native_dropout.default, empty, 0.5, True, outs=[empty, empty])[1].dtype == dtype


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout_scale_is_not_rounded(dtype: torch.dtype) -> None:
    """It equals torch's to the bit: half precision cannot represent 1 / (1 - p)."""
    x = torch.linspace(-3, 3, 61).to(dtype)
    y, mask = draw(A.native_dropout.default, x, 0.1, True, outs=[x, x.bool()])
    assert torch.equal(y, x * mask * (1 / 0.9))
    (grad,) = run(A.native_dropout_backward.default, x, mask, 1 / 0.9, outs=[x], numbers=True)
    assert torch.equal(grad, A.native_dropout_backward.default(x, mask, 1 / 0.9))


def test_rrelu() -> None:
    x = torch.randn(SHAPE)
    y, noise = draw(A.rrelu_with_noise.default, x, torch.zeros(SHAPE), 0.1, 0.3, True, outs=[x])
    assert torch.equal(y, x * noise)
    assert (noise[x > 0] == 1).all()
    agrees(noise[x <= 0], torch.distributions.Uniform(0.1, 0.3))
    check(A.rrelu_with_noise.default, x, torch.zeros(SHAPE), 0.1, 0.3, False)


def test_normal_of_tensors() -> None:
    mean, std = torch.tensor([[0.0], [10.0]]), torch.tensor([0.5, 2.0]).repeat(3000)
    for op, args, scale in (
        (A.normal.Tensor_Tensor, (mean, std), std),
        (A.normal.Tensor_float, (mean.expand(2, 6000), 3.0), torch.tensor(3.0)),
    ):
        (drawn,) = draw(op, *args, outs=[torch.empty(2, 6000)])
        agrees((drawn - mean) / scale, torch.distributions.Normal(0.0, 1.0))
    (drawn,) = draw(A.normal.float_Tensor, 1.0, std, outs=[std])
    agrees((drawn - 1) / std, torch.distributions.Normal(0.0, 1.0))
    (drawn,) = draw(A.normal.float_float, 1.0, 2.0, [9000], outs=[torch.empty(9000)])
    agrees(drawn, torch.distributions.Normal(1.0, 2.0))


def test_streams() -> None:
    def sample(rng: tuple[int, int]) -> torch.Tensor:
        return draw(A.normal_.default, torch.empty(SHAPE), 0.0, 1.0, rng=rng)[0].flatten()

    first = sample((7, 1))
    assert torch.equal(first, sample((7, 1)))
    for other_stream in ((7, 2), (8, 1), (7, 1 << 40), (1 << 63, 1)):
        assert abs(torch.corrcoef(torch.stack([first, sample(other_stream)]))[0, 1]) < 0.03
    assert torch.equal(draw(A.normal_.default, torch.empty(20000), 0.0, 1.0)[0], first)  # by the logical index
    assert first.isfinite().all()
    assert first.abs().max() < inf
    assert abs(first.sin().mean()) < pi / 100


def test_complex_uniform() -> None:
    components = torch.view_as_real(one(A.uniform_.default, torch.complex64, -1.0, 3.0)).unbind(-1)
    for component in components:
        agrees(component, torch.distributions.Uniform(-1.0, 3.0))
    assert not torch.equal(*components)
