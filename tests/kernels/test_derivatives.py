"""Derivatives of custom kernels: JAX's by default, also for Pallas kernels, and the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import lazytpu
from lazytpu.pallas import custom_jax_kernel
from tests.kernels.pallas_kernels import matmul, softmax

Function = Callable[..., Any]
# raised by torch itself, while it loads its derivatives of decompositions
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def gradients(function: Function, *operands: torch.Tensor, device: str) -> list[torch.Tensor]:
    leaves = [x.detach().to(device).requires_grad_() for x in operands]
    function(*leaves).square().sum().backward()
    return [leaf.grad.cpu() for leaf in leaves if leaf.grad is not None]


@pytest.mark.parametrize("mode", ["strict", "lazy", "fused"])
def test_a_pallas_kernel_with_an_accumulator(mode: str):
    x, y = torch.randn(16, 24), torch.randn(24, 8)
    product = custom_jax_kernel(lambda x, y: matmul(x, y, bm=8, bk=8, bn=8))
    with lazytpu.mode(mode):
        kernel_gradients = gradients(product, x, y, device="tpu")
    torch.testing.assert_close(kernel_gradients, gradients(torch.matmul, x, y, device="cpu"), rtol=1e-4, atol=1e-4)


def test_blocks_at_the_border():
    x = torch.randn(11, 6)
    kernel_gradients = gradients(custom_jax_kernel(softmax), x, device="tpu")
    torch.testing.assert_close(kernel_gradients, gradients(lambda x: x.softmax(-1), x, device="cpu"))


def test_writes_into_operands():
    kernel = custom_jax_kernel(input_output_aliases={0: 0})(lambda y, x: (jnp.sin(y) * x, x + 1))

    def written(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = y * 1
        view = y[0]
        result, factor = kernel(y, x)
        assert result is y
        return view * factor * result

    def expected(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (y.sin() * x)[0] * (x + 1) * (y.sin() * x)

    x, y = torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(gradients(written, y, x, device="tpu"), gradients(expected, y, x, device="cpu"))


def test_gradients_of_gradients():
    def twice(function: Function, x: torch.Tensor) -> torch.Tensor:
        (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0].cpu()

    x = torch.randn(8, 4)
    second = twice(custom_jax_kernel(softmax), x.to("tpu").requires_grad_())
    torch.testing.assert_close(second, twice(lambda x: x.softmax(-1), x.requires_grad_()))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.vmap(f)(torch.stack([x, x + 1])),
        lambda f, x: torch.func.vmap(f, in_dims=1, out_dims=1)(torch.stack([x, x + 1], 1)),
        lambda f, x: torch.func.grad(lambda x: f(x).square().sum())(x),
        lambda f, x: torch.func.jvp(f, (x,), (x + 1,))[1],
        lambda f, x: torch.func.vmap(torch.func.grad(lambda x: f(x).square().sum()))(torch.stack([x, x * 2])),
        lambda f, x: torch.func.grad(lambda x: torch.func.vmap(f)(torch.stack([x, x * x])).square().sum())(x),
        lambda f, x: torch.func.grad(lambda x: torch.func.grad(lambda x: f(x).square().sum())(x).square().sum())(x),
        lambda f, x: torch.func.jvp(torch.func.grad(lambda x: f(x).square().sum()), (x,), (x,))[1],
        lambda f, x: torch.func.jacrev(f)(x),
    ],
    ids=["vmap", "vmap dims", "grad", "jvp", "vmap grad", "grad vmap", "grad grad", "jvp grad", "jacrev"],
)
def test_transforms_of_torch_func(transform: Callable[[Function, torch.Tensor], torch.Tensor]):
    x = torch.randn(8, 3)
    result = transform(custom_jax_kernel(softmax), x.to("tpu")).cpu()
    torch.testing.assert_close(result, transform(lambda x: x.softmax(-1), x), rtol=1e-4, atol=1e-5)


def test_forward_mode():
    x = torch.randn(8, 3)

    def tangent(f: Function, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.forward_ad.dual_level():
            return torch.autograd.forward_ad.unpack_dual(f(torch.autograd.forward_ad.make_dual(x, x + 1))).tangent.cpu()

    torch.testing.assert_close(tangent(custom_jax_kernel(softmax), x.to("tpu")), tangent(lambda x: x.softmax(-1), x))


def test_operands_and_results_without_gradients():
    @custom_jax_kernel
    def pick(x: jax.Array, i: jax.Array) -> Any:
        return {"picked": x[i], "where": i + 1, "total": x.sum()}

    x, i = torch.randn(5, device="tpu").requires_grad_(), torch.tensor([1, 1, 3], device="tpu")
    results = pick(x, i)
    assert not results["where"].requires_grad
    results["picked"].sum().backward()  # no gradient comes to `total`
    assert x.grad is not None
    assert x.grad.tolist() == [0, 2, 0, 1, 0]


def test_complex_gradients_follow_torch():
    z = torch.randn(4, dtype=torch.complex64)

    def of(f: Function, z: torch.Tensor) -> torch.Tensor:
        z = z.detach().requires_grad_()
        f(z).abs().sum().backward()
        assert z.grad is not None
        return z.grad.cpu()

    torch.testing.assert_close(
        of(custom_jax_kernel(lambda z: z * z + 1j * z), z.to("tpu")), of(lambda z: z * z + 1j * z, z)
    )


def test_custom_vjp_is_used_and_keeps_its_residuals():
    calls: list[str] = []

    @jax.custom_vjp
    def clipped(x: jax.Array) -> jax.Array:
        return jnp.exp(x)

    def forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        calls.append("forward")
        y = jnp.exp(x)
        return y, y

    def backward(y: jax.Array, ct: jax.Array) -> tuple[jax.Array]:
        calls.append("backward")
        return (jnp.clip(ct * y, -1, 1),)

    clipped.defvjp(forward, backward)
    x = torch.tensor([-3.0, 0.0, 5.0], device="tpu").requires_grad_()
    torch.testing.assert_close(custom_jax_kernel(clipped)(x.detach()).cpu(), x.detach().cpu().exp())
    y = custom_jax_kernel(clipped)(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), x.detach().cpu().exp().clamp(-1, 1))
    assert calls == ["forward", "backward"]


def test_defvjp_of_a_kernel():
    @custom_jax_kernel
    def straight(x: jax.Array, *, levels: int) -> jax.Array:
        return jnp.round(x * levels) / levels

    def forward(x: jax.Array, *, levels: int) -> tuple[jax.Array, int]:
        return jnp.round(x * levels) / levels, levels

    straight.defvjp(forward, lambda levels, ct: (ct * levels,))
    x = torch.tensor([0.3, 0.6], device="tpu").requires_grad_()
    straight(x, levels=2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]


def test_training_step_is_one_program():
    torch.manual_seed(0)
    product = custom_jax_kernel(lambda x, y: matmul(x, y, bm=8, bk=8, bn=8))
    weight = torch.randn(16, 8).to("tpu").requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    x, y = torch.randn(8, 16).to("tpu"), torch.randn(8, 8).to("tpu")
    losses: list[torch.Tensor] = []
    with lazytpu.mode("fused"):
        for step in range(4):
            if step == 3:
                lazytpu.sync()
                lazytpu.reset_metrics()
            loss = (product(x, weight) - y).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        lazytpu.sync()
        assert lazytpu.metrics()["steps"] == 1
    values = [loss.item() for loss in losses]
    assert values == sorted(values, reverse=True)


def test_backward_ops_carry_the_line_of_the_call():
    x = torch.randn(8, 4, device="tpu").requires_grad_()
    kernel = custom_jax_kernel(softmax)
    with lazytpu.mode("lazy"):
        kernel(x).sum().backward()
        lazytpu.mark_step()
    text = lazytpu.graphs()[-1].text()
    assert 'loc("backward"("tests/kernels/test_derivatives.py"' in text


def test_defvjp_of_trees():
    kernel = custom_jax_kernel(lambda n, pair, scale: pair["a"] * n + pair["b"] * scale)

    def forward(n: int, pair: Any, scale: jax.Array) -> Any:
        return pair["a"] * n + pair["b"] * scale, None

    a, b, s = (torch.ones(2, device="tpu").requires_grad_() for _ in range(3))
    kernel.defvjp(forward, lambda _, ct: ({"a": ct * 10, "b": None}, ct * 30))
    kernel(2, {"a": a, "b": b}, s).sum().backward()
    assert [None if x.grad is None else x.grad.tolist() for x in (a, b, s)] == [[10, 10], [0, 0], [30, 30]]
    kernel.defvjp(forward, lambda _, ct: (ct,))
    with pytest.raises(TypeError, match="backward has to return a tuple of 2 gradients"):
        kernel(2, {"a": a, "b": b}, s).sum().backward()


def test_more_operands_and_results_than_torch_allows_an_op():
    """A schema of torch has at most 64 arguments. Forty layers have 81 operands, and as many gradients."""

    def deep(x: jax.Array, layers: list[tuple[jax.Array, jax.Array]]) -> jax.Array:
        for weight, bias in layers:
            x = jnp.tanh(x @ weight + bias)
        return x

    kernel, found = custom_jax_kernel(deep), []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        layers = [
            (torch.randn(4, 4).to(device).requires_grad_(), torch.randn(4).to(device).requires_grad_())
            for _ in range(40)
        ]
        x = y = torch.randn(3, 4).to(device)
        for weight, bias in layers if device == "cpu" else ():
            y = torch.tanh(y @ weight + bias)
        y = y if device == "cpu" else kernel(x, layers)
        y.sum().backward()
        found.append([y.detach().cpu(), *(t.grad.cpu() for layer in layers for t in layer if t.grad is not None)])
    assert len(found[0]) == len(found[1]) == 81
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
