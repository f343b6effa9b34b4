"""Graphs of a step: its ops put together by source line, cluster or kernel, or each for itself; as text and as DOT."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import networkx as nx

from lazytpu.inspection.step.model import Model
from lazytpu.inspection.step.reading import Op

BY = ("line", "cluster", "kernel", "op")
UNKNOWN = "no source line"


@dataclass(slots=True)
class Group:
    """Ops that are shown as one: the first says where in the step they are, the dearest what kind of work they do."""

    name: str
    first: int
    ops: int = 0
    seconds: float = 0.0
    backward: bool = False
    dearest: int = -1


def grouped(model: Model, by: str) -> nx.DiGraph:
    """The graph whose nodes are numbers in order of appearance, each with its `group`; an edge has the `bytes` that one
    reads of what the other makes. `by` is one of `BY`. Raises ValueError for another."""
    key = _keys(model).get(by)
    if key is None:
        raise ValueError(f"ops are put together by {', '.join(BY)}; not by {by!r}")
    made: Any = nx.DiGraph()
    numbers: dict[str, int] = {}
    shown = [op for op in model.step.ops if op.operands or op.users]
    for op in shown:
        name = key(op)
        if name not in numbers:
            numbers[name] = len(numbers)
            made.add_node(numbers[name], group=Group(name, op.number, backward=op.backward))
        group: Group = made.nodes[numbers[name]]["group"]
        group.ops += 1
        group.seconds += model.op_seconds[op.number]
        if group.dearest < 0 or model.op_seconds[op.number] > model.op_seconds[group.dearest]:
            group.dearest = op.number
    for op in shown:
        for user in op.users:
            a, b = numbers[key(op)], numbers[key(model.step.ops[user])]
            if a != b:
                made.add_edge(a, b, bytes=op.bytes + (made.edges[a, b]["bytes"] if made.has_edge(a, b) else 0))
    return made


def _keys(model: Model) -> dict[str, Callable[[Op], str]]:
    def kernel(op: Op) -> str:
        number = model.kernel_of[op.number]
        return f"{op.kind} {op.number}" if number < 0 else f"kernel {number}: {model.kernels[number].main.kind}"

    return {
        "line": lambda op: op.place or UNKNOWN,
        "cluster": lambda op: op.cluster or op.place or UNKNOWN,
        "kernel": kernel,
        "op": lambda op: f"{op.number} {op.kind}",
    }


def as_text(graph: nx.DiGraph) -> Iterable[str]:
    """A line for each node, in order, with those that read of it; "^" marks one that comes before it."""
    nodes: Any = graph.nodes
    for node in graph:
        group: Group = nodes[node]["group"]
        readers = [f"{'^' if b < node else ''}{b}" for b in graph.successors(node)]
        what = f"{group.ops:,} op{'s' if group.ops != 1 else ''}, {1e6 * group.seconds:,.1f} us"
        yield f"{node:>4}  {group.name}  ({what})" + (f"  -> {', '.join(readers)}" if readers else "")


def as_dot(graph: nx.DiGraph, name: str) -> str:
    """The graph in the language of GraphViz: `dot -Tsvg`. A node is the darker the longer it takes; one of the backward
    pass is blue."""
    nodes: Any = graph.nodes
    most = max((nodes[node]["group"].seconds for node in graph), default=0.0) or 1.0
    lines = [f"digraph {json.dumps(name)} {{", '  node [shape=box, style=filled, fontname="sans-serif"];']
    for node in graph:
        group: Group = nodes[node]["group"]
        label = json.dumps(f"{group.name}\n{group.ops:,} ops, {1e6 * group.seconds:,.1f} us")
        hue = 0.58 if group.backward else 0.08
        shade = f"{hue} {0.05 + 0.6 * group.seconds / most:.2f} 1.0"
        lines.append(f'  n{node} [label={label}, fillcolor="{shade}"];')
    for a, b, data in graph.edges(data=True):
        lines.append(f'  n{a} -> n{b} [tooltip="{data["bytes"]:,} bytes"];')
    return "\n".join([*lines, "}", ""])
