"""torch.func on the device: grad, vmap, jvp, vjp, Jacobians, Hessians, functional_call, randomness."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, stack_module_state, vjp, vmap
from torch.nn import functional as F

from tests.autograd.agreement import agree, filled, numbers

# raised by torch modules that forward mode imports
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")


def test_gradients() -> None:
    def run(d: str) -> Any:
        x, y = numbers(3, device=d), numbers(3, device=d, seed=1)
        value, pull = vjp(lambda x, y: (x * y).cumsum(0), x, y)
        return (
            grad(lambda x: ((x**3).sum(), x.cos()), has_aux=True)(x),
            grad(lambda x: grad(lambda y: y.tanh().prod())(x).sum())(x),
            (value, pull(y)),
        )

    agree(run)


def test_jacobians_and_hessians() -> None:
    def run(d: str) -> Any:
        x, w, v = numbers(3, device=d), numbers(4, 3, device=d), numbers(2, 4, device=d)
        return (
            jacrev(lambda x: x.softmax(0))(x),
            jacfwd(lambda x: x.softmax(0))(x),
            hessian(lambda x: F.gelu(v @ torch.tanh(w @ x)).logsumexp(0))(x),
        )

    agree(run)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
def test_forward_mode() -> None:
    def run(d: str) -> Any:
        x, t = numbers(3, device=d), numbers(3, device=d, seed=1)
        value, push = linearize(lambda x: x.sin().sum(), x)
        return jvp(lambda x: x.sin() @ x, (x,), (t,)), value, push(t)

    agree(run)


def test_gradients_of_each_sample() -> None:
    def run(d: str) -> Any:
        model = filled(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)), d)

        def loss(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

        x, y = numbers(5, 3, 4, 4, device=d), torch.arange(5, device=d) % 2
        return vmap(grad(loss), in_dims=(None, 0, 0))(dict(model.named_parameters()), x, y)

    agree(run)


def test_ensembles() -> None:
    def run(d: str) -> Any:
        models = [filled(nn.Linear(3, 2), d, seed=i) for i in range(3)]
        parameters, buffers = stack_module_state(models)
        base = copy.deepcopy(models[0]).to("meta")
        call = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))
        return call(parameters, buffers, numbers(4, 3, device=d))

    agree(run)


def test_vmap_over_many_ops() -> None:
    def run(d: str) -> Any:
        x = numbers(3, 4, 4, device=d)
        positive = x @ x.mT + 5 * torch.eye(4, device=d)
        index = torch.tensor([[0, 3]] * 3, device=d)

        def writes(x: torch.Tensor) -> torch.Tensor:
            y = torch.zeros_like(x)
            y.add_(x)
            y[0] = 5
            return y[1:].mul_(2)

        return [
            *(vmap(f)(x) for f in (torch.sort, torch.tril, torch.std, writes)),
            vmap(lambda x: x.masked_fill(x > 0, 0.0).unfold(0, 2, 1))(x),
            vmap(lambda x: F.layer_norm(F.pad(x, (1, 1)), (6,)))(x),
            vmap(lambda x: torch.einsum("ij,kj->ik", x, x), out_dims=1)(x),
            vmap(lambda x, i: x[i])(x, index),
            vmap(lambda x, i: x[0].scatter(0, i, x[1, :2]))(x, index),
            vmap(torch.linalg.solve)(positive, x),
            vmap(torch.linalg.cholesky)(positive),
        ]

    agree(run)


def test_vmap_over_layers() -> None:
    def run(d: str) -> Any:
        x, w = numbers(3, 2, 4, 6, 6, device=d), numbers(3, 5, 4, 3, 3, device=d)
        return [
            vmap(lambda x, w: F.conv2d(x, w, padding=1))(x, w),
            vmap(lambda x: F.max_pool2d(x, 2))(x),
            vmap(lambda x: F.interpolate(x, scale_factor=2.0))(x),
            vmap(lambda x: F.batch_norm(x, None, None, training=True))(x),
        ]

    agree(run)


def test_randomness() -> None:
    zeros = torch.zeros(4, 100, device="tpu")
    draws = {
        "rand": lambda x: x + torch.rand(100, device="tpu"),
        "randn_like": lambda x: x + torch.randn_like(x),
        "dropout": lambda x: F.dropout(x + 1, 0.5),
        "randint": lambda x: x + torch.randint(0, 1000, (100,), device="tpu"),
    }
    for name, draw in draws.items():
        different, same = (vmap(draw, randomness=r)(zeros) for r in ("different", "same"))
        assert not torch.equal(different[0], different[1]), name
        assert torch.equal(same[0], same[1]), name
        with pytest.raises(RuntimeError, match="randomness"):
            vmap(draw)(zeros)
    permutations = vmap(lambda x: x[:5] + torch.randperm(5, device="tpu"), randomness="different")(zeros)
    assert permutations.sort(1).values.tolist() == [[0, 1, 2, 3, 4]] * 4
