"""Torch functions inside of JAX: values, jit, grad and vmap, modules, and refusals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lazytpu import interop
from lazytpu.interop import torch_function

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def scores(x: Any, w: Any, scale: float = 2.0) -> Any:
    return {"p": torch.softmax(x @ w, -1) * scale, "best": (x @ w).argmax(-1)}


def reference(x: Any, w: Any, scale: float = 2.0) -> Any:
    return jax.nn.softmax(x @ w, -1) * scale


X = jax.random.normal(jax.random.key(0), (3, 4))
W = jax.random.normal(jax.random.key(1), (4, 5))


def loss(x: Any, w: Any) -> Any:
    return (torch_function(scores)(x, w)["p"] ** 2).sum()


def reference_loss(x: Any, w: Any) -> Any:
    return (reference(x, w) ** 2).sum()


def close(found: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), found, expected)


def test_values_with_and_without_jit():
    call = torch_function(scores)
    close(call(X, W)["p"], reference(X, W))
    close(jax.jit(call)(X, W)["p"], reference(X, W))
    close(call(X, W, scale=3.0)["p"], reference(X, W, 3.0))
    assert call(X, W)["best"].dtype == jnp.int64
    assert call(X, W)["best"].tolist() == (X @ W).argmax(-1).tolist()


def test_call_inside_of_a_jax_program():
    def step(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(torch_function(torch.cos)(x)), x)

    expected = X
    for _ in range(3):
        expected = jnp.sin(jnp.cos(expected))
    close(jax.jit(step)(X), expected)


def test_gradients():
    close(jax.grad(loss, argnums=(0, 1))(X, W), jax.grad(reference_loss, argnums=(0, 1))(X, W))
    close(jax.jit(jax.grad(loss))(X, W), jax.grad(reference_loss)(X, W))
    twice = jax.grad(lambda x: (jax.grad(loss)(x, W) ** 2).sum())(X)
    close(twice, jax.grad(lambda x: (jax.grad(reference_loss)(x, W) ** 2).sum())(X))


def test_batches():
    batch = jnp.stack([X, X + 1])
    call = torch_function(scores)
    close(jax.vmap(call, in_axes=(0, None))(batch, W)["p"], jax.vmap(reference, in_axes=(0, None))(batch, W))
    close(
        jax.jit(jax.vmap(jax.grad(loss), in_axes=(0, None)))(batch, W),
        jax.vmap(jax.grad(reference_loss), in_axes=(0, None))(batch, W),
    )


def test_module_with_its_parameters():
    model = torch.nn.Linear(4, 2).to("tpu")
    call = torch_function(model)
    expected = np.asarray(X) @ model.weight.detach().cpu().numpy().T + model.bias.detach().cpu().numpy()
    close(call(X), expected)
    with torch.no_grad():
        model.bias.add_(1)
    close(call(X), expected + 1)  # a call without jit uses the current parameters
    functional = torch_function(lambda parameters, x: torch.func.functional_call(model, parameters, (x,)))
    parameters = {name: interop.to_jax(p.detach()) for name, p in model.named_parameters()}
    gradient = jax.grad(lambda parameters: functional(parameters, X).sum())(parameters)
    close(gradient["bias"], np.full(2, 3.0))


def test_complex_gradients_follow_jax():
    z = jnp.array([1 + 2j, 0.5 - 1j], jnp.complex64)

    def of(f: Any) -> Any:
        return jax.grad(lambda z: jnp.sum(jnp.abs(f(z)) ** 2))(z)

    close(of(torch_function(lambda z: z * z + 1j * z)), of(lambda z: z * z + 1j * z))


CASES: dict[str, tuple[Any, type[Exception], str]] = {
    "item": (lambda x: x * x.sum().item(), RuntimeError, "its tensors have no values: it cannot read one"),
    "argument's item": (lambda x: x if x[0, 0] > 0 else -x, RuntimeError, "it cannot read one"),
    "cpu": (lambda x: x.cpu(), RuntimeError, "it cannot read one"),
    "write": (lambda x: x.add_(1), RuntimeError, r"writes into its argument.*x.clone\(\)"),
    "random": (lambda x: x + torch.rand_like(x), RuntimeError, "draws random numbers.*jax.random"),
    "number": (lambda x: 3, TypeError, "returned a int"),
    "elsewhere": (lambda x: torch.ones(2), TypeError, "returned a tensor on 'cpu'"),
}


@pytest.mark.parametrize("name", CASES)
def test_invalid_functions_are_refused(name: str):
    function, kind, message = CASES[name]
    with pytest.raises(kind, match=f"(?s){message}"):
        torch_function(function)(X)
    assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]


def test_results_that_are_arguments():
    weight = torch.ones(2, device="tpu")
    same, view, captured = torch_function(lambda x: (x, x.t(), weight))(X)
    close((same, view, captured), (X, X.T, jnp.ones(2)))
