"""The tensors that a forward graph saves for its backward graph, and the conversion of its results to tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from lazytpu.dynamo import graph as graphs
from lazytpu.dynamo.partition import partition
from lazytpu.frontend.torch_private import aot_autograd


def boxed(graph: fx.GraphModule, inputs: Any) -> Callable[[list[Any]], Any]:
    """Return a compiled graph as AOTAutograd calls it."""

    def call(args: list[Any]) -> Any:
        return graph.forward(*args)

    vars(call)["_boxed_call"] = True
    return call


def test_views_of_a_multi_view_op_are_repeated() -> None:
    """The forward graph saves their base, once."""
    kept: list[str] = []

    def forward(graph: fx.GraphModule, inputs: Any) -> Any:
        kept.extend(node.name for node in graph.graph.output_node().all_input_nodes)
        return boxed(graph, inputs)

    def function(x: torch.Tensor) -> torch.Tensor:
        a, b, c = x.exp().split(2)
        return (a * b * c).sum()

    backend = aot_autograd(fw_compiler=forward, bw_compiler=boxed, partition_fn=partition)
    x = torch.rand(6, requires_grad=True)
    torch.compile(function, backend=backend)(x).backward()
    (expected,) = torch.autograd.grad(function(x), x)
    torch.testing.assert_close(x.grad, expected)
    assert not [name for name in kept if name.startswith(("getitem", "split"))]
    assert kept.count("exp") == 1


def test_a_gradient_that_was_summed_over_rows_covers_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is computed as [1, n] and returned as [n], which needs no view."""
    kinds: list[str] = []
    results = graphs._results

    def spied(plan: Any, *rest: Any) -> Any:
        kinds.extend(kind for kind, *_ in plan.results)
        return results(plan, *rest)

    monkeypatch.setattr(graphs, "_results", spied)
    layer = torch.nn.Linear(3, 4).to("tpu")
    torch.compile(layer)(torch.ones(2, 3, device="tpu")).sum().backward()
    gradient = layer.bias.grad
    assert gradient is not None
    assert (gradient.shape, gradient.untyped_storage().nbytes(), gradient._is_view()) == ((4,), 16, False)
    assert gradient.tolist() == [2, 2, 2, 2]
    assert gradient.add_(1).view(2, 2).tolist() == [[3, 3], [3, 3]]
    assert "value" not in kinds
    assert kinds.count("whole") >= 3
