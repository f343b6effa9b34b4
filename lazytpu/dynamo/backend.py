"""The backend of torch.compile: AOTAutograd's forward and backward graphs, each recorded as one record.

The forward graph saves the same activations as eager code (`partition`). XLA sees the whole step, and decides what to
recompute; activation checkpointing is obeyed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import fx

from lazytpu.dynamo.graph import CompiledGraph
from lazytpu.dynamo.host_part import WithHostPart, split
from lazytpu.dynamo.partition import partition
from lazytpu.dynamo.varying import asked_for, note_floats, varying_sizes
from lazytpu.frontend.torch_private import aot_autograd


def _compiled(
    kind: str, is_dynamic: bool, tuned: bool, graph: fx.GraphModule, inputs: Sequence[Any]
) -> Callable[[list[Any]], Sequence[Any]]:
    """Return the callable for one of AOTAutograd's graphs; a part that runs on the host is split off."""
    division = split(graph)
    of_device = graph if division is None else division.rest
    sizes = None if kind == "backward" else varying_sizes(of_device, is_dynamic)
    compiled = CompiledGraph(of_device, kind, sizes, tuned)
    return compiled if division is None else WithHostPart(division, compiled)


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any], tuned: bool = False) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured. Returns the callable that replaces the user's code.

    `tuned` says whether passes are selected for the programs that contain the graph.
    """
    note_floats(graph)
    is_dynamic = asked_for(inputs)
    backend = aot_autograd(
        fw_compiler=partial(_compiled, "forward", is_dynamic, tuned),
        bw_compiler=partial(_compiled, "backward", is_dynamic, tuned),
        inference_compiler=partial(_compiled, "inference", is_dynamic, tuned),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    return backend(graph, inputs)
