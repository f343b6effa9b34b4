"""autograd.Function and hooks written by users, on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.func import grad, vmap

from tests.autograd.agreement import agree, filled, numbers

# torch scripts a part of itself for derivatives in forward mode, once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


class Exp(torch.autograd.Function):
    """With its context set up apart, a rule for vmap, and one for forward mode."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        return tangent * ctx.saved_tensors[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor) -> Any:
        return Exp.apply(x), in_dims[0]


class Scaled(torch.autograd.Function):
    """With an output that has no gradient, and a backward that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: float) -> Any:
        ctx.save_for_backward(x)
        ctx.k = k
        largest = x.argmax()
        ctx.mark_non_differentiable(largest)
        return x * k, largest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        return grad * ctx.k + ctx.saved_tensors[0], None


class Doubled(torch.autograd.Function):
    """Writes its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


class Square(torch.autograd.Function):
    """vmap makes its own rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2 * ctx.saved_tensors[0]


def test_functions() -> None:
    def run(d: str) -> Any:
        x = numbers(3, device=d).requires_grad_()
        (first,) = torch.autograd.grad(Exp.apply(x).sum(), x, create_graph=True)
        return (
            first,
            torch.autograd.grad(first.sum(), x),
            torch.autograd.grad(Scaled.apply(x, 3.0)[0].sum(), x),
            torch.autograd.grad(Doubled.apply(x * 1).sum(), x),
            torch.func.jvp(Exp.apply, (x.detach(),), (x.detach(),)),
            vmap(Exp.apply)(numbers(2, 3, device=d)),
            vmap(grad(lambda x: Square.apply(x).sum()))(numbers(2, 3, device=d)),
        )

    agree(run)


def test_hooks_of_modules_tensors_and_nodes() -> None:
    def run(d: str) -> Any:
        model = filled(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), d)
        seen = []
        model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
        model[0].register_forward_hook(lambda module, inputs, output: output + 1)
        model[2].register_full_backward_hook(lambda module, into, out: (into[0] * 3,))
        model[2].register_full_backward_pre_hook(lambda module, out: (out[0] * 0.5,))
        model[0].weight.register_hook(lambda grad: grad * 2)
        model[2].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        x = numbers(2, 3, device=d).requires_grad_()
        y = model(x)
        y.retain_grad()
        y.grad_fn.register_prehook(lambda out: (out[0] + 1,))
        y.sum().backward()
        return y.grad, x.grad, [p.grad for p in model.parameters()], seen

    agree(run)


def test_hooks_of_saved_tensors() -> None:
    def run(d: str) -> Any:
        x = numbers(3, device=d).requires_grad_()
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t * 1, lambda t: t * 2):
            doubled = (x * x).sum()
        with torch.autograd.graph.save_on_cpu():
            through_the_host = (x**3).sum()
        return torch.autograd.grad(doubled, x), torch.autograd.grad(through_the_host, x), len(packed)

    agree(run)


def test_an_optimizer_in_the_backward_pass() -> None:
    def run(d: str) -> Any:
        layer = filled(nn.Linear(3, 2), d)
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in layer.parameters()}

        def step(p: torch.Tensor) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in layer.parameters():
            p.register_post_accumulate_grad_hook(step)
        for _ in range(2):
            layer(numbers(4, 3, device=d)).square().mean().backward()
        return list(layer.parameters())

    agree(run)
