"""The backend of torch.compile: forward and backward graphs by AOTAutograd, each of which is one record.

The forward graph keeps the activations that eager code keeps (`partition`). What a step computes twice is up to XLA,
which sees the whole step; activation checkpointing says otherwise, and is obeyed.
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
    kind: str, asked: bool, tuned: bool, graph: fx.GraphModule, inputs: Sequence[Any]
) -> Callable[[list[Any]], Sequence[Any]]:
    parts = split(graph)
    of_device = graph if parts is None else parts.rest
    sizes = None if kind == "backward" else varying_sizes(of_device, asked)
    compiled = CompiledGraph(of_device, kind, sizes, tuned)
    return compiled if parts is None else WithHostPart(parts, compiled)


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any], tuned: bool = False) -> Callable[..., Any]:
    """A callable for a graph that Dynamo captured: what `torch.compile` calls in place of the user's code. `tuned` says
    whether passes are chosen for the programs that it is part of."""
    note_floats(graph)
    asked = asked_for(inputs)
    backend = aot_autograd(
        fw_compiler=partial(_compiled, "forward", asked, tuned),
        bw_compiler=partial(_compiled, "backward", asked, tuned),
        inference_compiler=partial(_compiled, "inference", asked, tuned),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    return backend(graph, inputs)
