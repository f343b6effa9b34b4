"""Graphs of a step, as text and as DOT: ops are grouped by source line or cluster, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import networkx as nx

from lazytpu.inspection.step.costs import CostedStep
from lazytpu.inspection.step.reading import StepOp

UNKNOWN = "no source line"


@dataclass(frozen=True, slots=True)
class OpGroup:
    """Ops that are shown as one node, `backward` if the first of them is. `costliest` is the op that takes longest."""

    name: str
    ops: int
    seconds: float
    backward: bool
    costliest: int


def grouped(costed: CostedStep, by: str) -> nx.DiGraph:
    """Return the graph of groups: nodes are numbers in order of appearance, each with its `group`. An edge has the
    `bytes` that its target reads from its source. Raises ValueError if `by` is not in `KEYS`."""
    key, step = KEYS.get(by), costed.step
    if key is None:
        raise ValueError(f"ops are grouped by {', '.join(KEYS)}, not by {by!r}")
    graph: Any = nx.DiGraph()
    members: dict[str, list[StepOp]] = {}
    for op in step.ops:
        if op.operands or op.users:
            members.setdefault(key(op), []).append(op)
    numbers = {name: at for at, name in enumerate(members)}
    for name, ops in members.items():
        seconds = {op.number: costed.op_seconds[op.number] for op in ops}
        costliest = max(seconds, key=seconds.__getitem__)
        graph.add_node(numbers[name], group=OpGroup(name, len(ops), sum(seconds.values()), ops[0].backward, costliest))
    for op in step.ops:
        for user in op.users:
            a, b = numbers[key(op)], numbers[key(step.ops[user])]
            if a != b:
                graph.add_edge(a, b, bytes=op.bytes + (graph.edges[a, b]["bytes"] if graph.has_edge(a, b) else 0))
    return graph


KEYS: dict[str, Callable[[StepOp], str]] = {
    "line": lambda op: op.place or UNKNOWN,
    "cluster": lambda op: op.cluster or op.place or UNKNOWN,
    "op": lambda op: f"{op.number} {op.kind}",
}
"Criterion of grouping -> the name of an op's group."


def groups_of(graph: nx.DiGraph) -> dict[int, OpGroup]:
    """Return the groups of the nodes of a graph."""
    return nx.get_node_attributes(graph, "group")


def as_text(graph: nx.DiGraph) -> Iterable[str]:
    """Yield one line per node, in order, with its consumers; "^" marks a consumer that comes before it."""
    for node, group in groups_of(graph).items():
        readers = [f"{'^' if b < node else ''}{b}" for b in graph.successors(node)]
        figures = f"{group.ops:,} op{'s' if group.ops != 1 else ''}, {1e6 * group.seconds:,.1f} us"
        yield f"{node:>4}  {group.name}  ({figures})" + (f"  -> {', '.join(readers)}" if readers else "")


def as_dot(graph: nx.DiGraph, name: str) -> str:
    """Return the graph in GraphViz's language, for `dot -Tsvg`. Darker nodes take longer; nodes of the backward pass
    are blue."""
    groups = groups_of(graph)
    most = max((group.seconds for group in groups.values()), default=0.0) or 1.0
    lines = [f"digraph {json.dumps(name)} {{", '  node [shape=box, style=filled, fontname="sans-serif"];']
    for node, group in groups.items():
        label = json.dumps(f"{group.name}\n{group.ops:,} ops, {1e6 * group.seconds:,.1f} us")
        hue = 0.58 if group.backward else 0.08
        shade = f"{hue} {0.05 + 0.6 * group.seconds / most:.2f} 1.0"
        lines.append(f'  n{node} [label={label}, fillcolor="{shade}"];')
    for a, b, data in graph.edges(data=True):
        lines.append(f'  n{a} -> n{b} [tooltip="{data["bytes"]:,} bytes"];')
    return "\n".join([*lines, "}", ""])
