"""Custom kernels under torch.compile: one opaque op of the graph, with its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from lazytpu.pallas import custom_jax_kernel
from tests.kernels.pallas_kernels import softmax

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by torch itself, while it imports dynamo


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tpu"])
def test_kernel_breaks_no_graph(backend: str):
    kernel = custom_jax_kernel(softmax)

    def step(x: torch.Tensor) -> torch.Tensor:
        return kernel(x * 2).sin().sum()

    gradients = []
    for function in (step, torch.compile(step, backend=backend, fullgraph=True)):
        x = torch.linspace(0, 1, 32, device="tpu").reshape(8, 4).requires_grad_()
        function(x).backward()
        assert x.grad is not None
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(*gradients)


def test_kernel_is_one_node_with_its_settings_and_trees():
    graphs: list[Any] = []

    def note(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    pair = custom_jax_kernel(lambda xs, *, scale: {"y": xs[0] * scale, "z": (xs[1].sum(),)})
    step = torch.compile(lambda x: pair([x, x + 1], scale=3), backend=note, fullgraph=True)
    results = step(torch.ones(2, device="tpu"))
    assert (results["y"].tolist(), results["z"][0].item()) == ([3, 3], 4)
    (graph,) = graphs
    assert len([n for n in graph.graph.nodes if n.op == "call_function"]) <= 5


def test_varying_numbers():
    def scaled(x: jax.Array, number: jax.Array, *, setting: float = 1.0) -> jax.Array:
        return x * number + setting

    kernel = custom_jax_kernel(scaled)
    x = torch.ones(2, device="tpu")
    for function in (lambda n: kernel(x, n), lambda n: kernel(x, 1.0, setting=n)):
        step = torch.compile(function, fullgraph=True)
        for number in (1.5, 2.5, 3.5, 2, 3, 5):
            assert step(number).tolist() == function(number).tolist()


def test_varying_sizes():
    kernel = custom_jax_kernel(jnp.cumsum)
    step = torch.compile(lambda x: kernel(x) + 1, backend="aot_eager", dynamic=True)
    for size in (3, 5, 6):
        assert step(torch.ones(size, device="tpu")).tolist() == [n + 2 for n in range(size)]


def test_kernel_created_after_dynamo_was_loaded():
    def make() -> Any:
        return custom_jax_kernel(lambda x: x + 1)

    kernel = make()
    assert torch.compile(lambda x: kernel(x), backend="eager", fullgraph=True)(torch.ones(1, device="tpu")).item() == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_kernel_that_writes(backend: str):
    update = custom_jax_kernel(input_output_aliases={0: 0})(lambda cache, x: cache + x)

    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        update(cache, x)
        return cache * 2

    cache = torch.zeros(2, device="tpu")
    result = torch.compile(step, backend=backend, fullgraph=True)(cache, torch.ones(2, device="tpu"))
    assert (result.tolist(), cache.tolist()) == ([2, 2], [1, 1])


def test_captured_variables_are_guarded():
    factor, factors = 1.0, [1.0]
    kernel = custom_jax_kernel(lambda x: x * factor * factors[0])
    step = torch.compile(lambda x: kernel(x) + 0, fullgraph=True)
    x = torch.ones(2, device="tpu")
    assert step(x).tolist() == [1, 1]
    factor = 2.0
    assert step(x).tolist() == [2, 2]
    factors[0] = 3.0
    assert step(x).tolist() == [6, 6]
