"""Forward mode and second derivatives on the device: against the CPU, and against differences in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.autograd import functional as whole
from torch.nn import functional as F

from tests.autograd.agreement import agree, filled, numbers

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")
F64 = torch.float64
Function = Callable[..., torch.Tensor]


def square(x: torch.Tensor) -> torch.Tensor:
    """Something positive definite."""
    return x @ x.mT + 2 * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


CHECKED: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "products": (lambda x, y: torch.tanh(x @ y).prod(1), ((2, 3), (3, 2))),
    "softmax and norms": (lambda x: F.layer_norm(x.softmax(1), (4,)), ((3, 4),)),
    "convolution": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), ((1, 2, 4, 4), (2, 2, 3, 3))),
    "pooling and resampling": (
        lambda x: F.interpolate(F.avg_pool1d(x, 2), scale_factor=2.0, mode="linear"),
        ((1, 2, 6),),
    ),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), ((1, 1, 3, 2),) * 3),
    "linear algebra": (lambda x: torch.linalg.solve(square(x), x).logsumexp(0), ((3, 3),)),
    "scans and sorts": (lambda x: x.cumprod(0).sort(1).values, ((3, 3),)),
    "indexing": (lambda x: x[[0, 2, 2]].index_add(0, torch.tensor([1], device=x.device), x[:1]), ((3, 2),)),
}


@pytest.mark.parametrize("case", CHECKED)
def test_gradients_by_differences(case: str) -> None:
    function, shapes = CHECKED[case]
    inputs = [numbers(*s, device="tpu", seed=i, dtype=F64).requires_grad_() for i, s in enumerate(shapes)]
    assert gradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize(
    "case",
    [
        "softmax and norms",
        "convolution",
        pytest.param("products", marks=pytest.mark.long),
        pytest.param("linear algebra", marks=pytest.mark.long),
    ],
)
def test_second_gradients_by_differences(case: str) -> None:
    function, shapes = CHECKED[case]
    inputs = [numbers(*s, device="tpu", seed=i, dtype=F64).requires_grad_() for i, s in enumerate(shapes)]
    assert gradgradcheck(function, inputs, fast_mode=True)


def test_a_gradient_penalty() -> None:
    def run(d: str) -> Any:
        x, layer = numbers(4, 3, device=d).requires_grad_(), filled(nn.Linear(3, 2), d)
        (g,) = torch.autograd.grad(F.silu(layer(x)).square().sum(), x, create_graph=True)
        (g.norm(2, 1) - 1).square().mean().backward()
        return x.grad, [p.grad for p in layer.parameters()]

    agree(run)


def test_second_gradients_of_layers() -> None:
    layers = [
        nn.Conv1d(4, 3, 2),
        nn.BatchNorm1d(4, affine=False),
        nn.GELU(),
        nn.MaxPool1d(2),
        nn.LSTM(6, 2),
        nn.Upsample(scale_factor=2.0, mode="linear"),
    ]

    def run(d: str) -> Any:
        gradients = []
        for layer in layers:
            x = numbers(2, 4, 6, device=d).requires_grad_()
            y = filled(layer, d)(x)
            (g,) = torch.autograd.grad((y[0] if isinstance(y, tuple) else y).square().sum(), x, create_graph=True)
            gradients.append(torch.autograd.grad(g.square().sum(), x)[0])
        return gradients

    agree(run, rtol=1e-3, atol=1e-4)


def test_dual_numbers() -> None:
    def run(d: str) -> Any:
        layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Flatten(), nn.LayerNorm(12))
        model = filled(layers, d)
        with forward_ad.dual_level():
            m = forward_ad.make_dual(numbers(3, 3, device=d), numbers(3, 3, device=d, seed=1))
            written = m.t().clone()
            written.add_(m)
            written[0] = m[1]
            image = forward_ad.make_dual(numbers(4, 2, 4, 4, device=d), numbers(4, 2, 4, 4, device=d, seed=1))
            duals = [(m @ m).softmax(1), written, model(image)]
            return [tuple(forward_ad.unpack_dual(t)) for t in duals]

    agree(run, rtol=1e-3, atol=1e-4)


def test_forward_over_reverse() -> None:
    def run(d: str) -> Any:
        with forward_ad.dual_level():
            x = forward_ad.make_dual(numbers(3, device=d).requires_grad_(), numbers(3, device=d, seed=1))
            (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
            return forward_ad.unpack_dual(g).tangent

    agree(run)


def test_autograd_functional() -> None:
    def run(d: str) -> Any:
        x = numbers(3, device=d)

        def f(x: torch.Tensor) -> torch.Tensor:
            return (x**3).sum() + x.prod()

        return (
            whole.jacobian(lambda x: x.sin() * x[0], x, vectorize=True, strategy="forward-mode"),
            whole.hessian(f, x),
            whole.hvp(f, x, x),
            whole.jvp(f, x, x),
        )

    agree(run)


def test_gradients_through_views_written_in_place() -> None:
    def run(d: str) -> Any:
        x = numbers(4, 4, device=d).requires_grad_()
        y = x * 1
        y[1:3, ::2].mul_(3)
        y.t()[0].add_(x[:, 1])
        y.diagonal().fill_(2.0)
        y.view(2, 8)[0, :3] = 7
        y.index_put_((torch.tensor([0, 1], device=d),), x[2], accumulate=True)
        (grad,) = torch.autograd.grad((y**2).sum(), x)
        return grad

    agree(run)


def test_gradients_of_complex_numbers() -> None:
    def run(d: str) -> Any:
        z = torch.complex(numbers(3, device=d), numbers(3, device=d, seed=4)).requires_grad_()
        y = (z * z.conj()).real.sum() + z.exp().abs().sum() + torch.view_as_real(z * 2j).prod()
        return torch.autograd.grad(y, z)

    agree(run)


def refused(function: Callable[[], Any]) -> str:
    """The error that torch raises, without its hint."""
    with pytest.raises(RuntimeError) as error:
        function()
    return str(error.value).split("[")[0].split(":")[0]


def test_misuse_is_refused_as_on_the_cpu() -> None:
    def run(d: str) -> Any:
        x = numbers(3, device=d).requires_grad_()
        saved = (x * 1).exp()
        saved.add_(1)
        twice = (x**2).sum()
        twice.backward()
        with torch.inference_mode():
            inference = x * 2
        return [
            refused(lambda: saved.sum().backward()),
            refused(twice.backward),
            refused(lambda: x.add_(1)),
            refused(lambda: (inference * x).sum().backward()),
        ]

    agree(run)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomalies_are_found() -> None:
    x = torch.zeros(2, device="tpu", requires_grad=True)
    with pytest.raises(RuntimeError, match="returned nan values"), torch.autograd.detect_anomaly():
        (x * 0).sqrt().sum().backward()
