"""The backend of torch.compile: forward and backward graphs by AOTAutograd, each of which is one record.

AOTAutograd's default partition keeps the activations that eager code keeps, except that the backward graph takes views
itself: a view costs nothing there, and 10 us a step as a result of the forward graph. What a step computes twice is up
to XLA, which sees the whole step; activation checkpointing says otherwise, and is obeyed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from lazytpu.dynamo.graph import CompiledGraph
from lazytpu.frontend.torch_private import aot_autograd, default_partition

aten = torch.ops.aten
# Views whose base has no more elements than they have.
_VIEWS = {
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.view.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.expand.default,
    aten.alias.default,
    aten.detach.default,
}


def _partition(joint: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward graph of a joint one."""
    _repeat_views(joint.graph)
    return default_partition(joint, inputs, **options)


def _repeat_views(graph: fx.Graph) -> None:
    """Let backward nodes take views of forward values anew."""
    nodes = list(graph.nodes)
    last = max((i for i, n in enumerate(nodes) if n.meta.get("partitioner_tag") == "is_forward"), default=-1)
    forward = {n for n in nodes[: last + 1] if "tangents" not in n.name}
    repeated: dict[fx.Node, fx.Node] = {}

    def repeat(node: fx.Node) -> fx.Node:
        if node not in forward or node.target not in _VIEWS:
            return node
        if node not in repeated:
            new = repeated[node] = graph.node_copy(node, repeat)
            new.meta["partitioner_tag"] = "is_backward"
        return repeated[node]

    for node in nodes[last + 1 :]:
        if node.op == "call_function":
            with graph.inserting_before(node):
                node.args, node.kwargs = (fx.map_arg(a, repeat) for a in (node.args, node.kwargs))


def _compiled(kind: str, graph: fx.GraphModule, inputs: Sequence[Any]) -> CompiledGraph:
    return CompiledGraph(graph, kind)


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A callable for a graph that Dynamo captured: what `torch.compile` calls in place of the user's code."""
    backend = aot_autograd(
        fw_compiler=partial(_compiled, "forward"),
        bw_compiler=partial(_compiled, "backward"),
        inference_compiler=partial(_compiled, "inference"),
        partition_fn=_partition,
        keep_inference_input_mutations=True,
    )
    return backend(graph, inputs)
