"""The part of a graph that computes on the host, from tensors there: it runs on the host at each call, and the
remaining ops are one record.

Dynamo passes a Python float that varies as a 0-d CPU tensor, and Python arithmetic on it as ops on such tensors. The
record takes their results as run-time numbers, like 0-d CPU tensors in eager code (R3). Larger CPU tensors that device
ops take are copied to the device first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from lazytpu.dynamo.interpret import random_states
from lazytpu.frontend.torch_private import pytree

_CLONE, _COPY = torch.ops.aten.clone.default, torch.ops.aten._to_copy.default
_DEVICE = torch.device("tpu", 0)


@dataclass(frozen=True, slots=True)
class Parts:
    """A graph in two parts. `host` takes the `arguments` of these indices. It returns `crossing` values for `rest`,
    then its own results. `rest` takes the arguments `others`, then the crossing values.

    `results` has, for each result of the graph, whether it is a result of the host part, and its index there.
    """

    host: fx.GraphModule
    rest: fx.GraphModule
    arguments: tuple[int, ...]
    others: tuple[int, ...]
    crossing: int
    results: tuple[tuple[bool, int], ...]


class WithHostPart:
    """A graph in two parts as a callable, in AOTAutograd's boxed convention: it takes one list of arguments, and
    empties it.

    `rest` is the callable of the part on the device.
    """

    def __init__(self, parts: Parts, rest: Callable[[list[Any]], Sequence[Any]]):
        self._boxed_call = True
        self.parts = parts
        self.rest = rest

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        division = self.parts
        device_arguments = [args[i] for i in division.others]
        computed = division.host(*[args[i] for i in division.arguments])
        args.clear()
        device_arguments.extend(computed[: division.crossing])
        device_results = self.rest(device_arguments)
        return [computed[division.crossing + i] if on_host else device_results[i] for on_host, i in division.results]


def split(graph: fx.GraphModule) -> Parts | None:
    """Split a graph into two parts, or return None if one record can hold all of it.

    Also None when the host part needs values of the device, or draws random numbers.
    """
    division = _Division(graph)
    needed = division.host or any(map(division.is_hosts, division.returned))
    return division.parts() if needed and not division.refused else None


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]


def _on_host(node: fx.Node) -> bool:
    return any(t.device.type == "cpu" for t in _tensors(node))


def _is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


class _Division:
    """The assignment of a graph's nodes to the two parts.

    `host` are the nodes that depend on a CPU tensor argument, and on no device tensor. `plain` depend on no tensor
    argument, and may be in both parts. `refused` says that the graph cannot be split.
    """

    def __init__(self, graph: fx.GraphModule):
        self.graph = graph
        self.placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
        (output,) = [n for n in graph.graph.nodes if n.op == "output"]
        returned = output.args[0]
        self.returned: list[Any] = list(returned) if isinstance(returned, list | tuple) else [returned]
        states = random_states(graph)
        inputs = [n for i, n in enumerate(self.placeholders) if _on_host(n) and i not in states]
        self.host = set(inputs)
        self.plain = {n for n in self.placeholders if not _tensors(n)}
        self.refused = False
        if inputs or any(isinstance(n, fx.Node) and _on_host(n) for n in self.returned):
            for node in graph.graph.nodes:
                if node.op not in ("placeholder", "output"):
                    self._place(node)

    def _place(self, node: fx.Node) -> None:
        needs = node.all_input_nodes
        random = isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
        if all(n in self.plain for n in needs) and not _tensors_of_device(node):
            self.plain.add(node)
            self.refused |= random
        elif any(map(self._is_host_value, needs)) and all(n in self.plain or self._is_host_value(n) for n in needs):
            self.host.add(node)
            self.refused |= random
        elif isinstance(node.target, OpOverload) and _on_host(node):
            self.refused = True  # it copies a device value to the host

    def is_hosts(self, result: Any) -> bool:
        """Return whether a result belongs to the host part: it is computed there, or is a constant on the CPU."""
        if not isinstance(result, fx.Node):  # a number; a symbolic one has no hash
            return False
        return result in self.host or (result in self.plain and _on_host(result))

    def _is_host_value(self, node: fx.Node) -> bool:
        return node in self.host and not _tensors_of_device(node)

    def parts(self) -> Parts:
        """Build the two graphs."""
        rest_nodes = [n for n in self.graph.graph.nodes if n not in self.host and n.op not in ("placeholder", "output")]
        used = {n for node in rest_nodes for n in node.all_input_nodes}
        crossing = [n for n in self.graph.graph.nodes if n in self.host and n in used]
        of_host = [n for n in self.returned if self.is_hosts(n)]
        host, arguments = self._host(crossing, of_host)
        of_device = [n for n in self.returned if not self.is_hosts(n)]
        device_graph, device_arguments = self._rest(rest_nodes, crossing, of_device)
        results, counts = list[tuple[bool, int]](), [0, 0]
        for node in self.returned:
            on_host = self.is_hosts(node)
            results.append((on_host, counts[on_host]))
            counts[on_host] += 1
        return Parts(host, device_graph, arguments, device_arguments, len(crossing), tuple(results))

    def _host(self, crossing: list[fx.Node], of_host: list[fx.Node]) -> tuple[fx.GraphModule, tuple[int, ...]]:
        new, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        arguments = [i for i, n in enumerate(self.placeholders) if n in self.host or n in self.plain]
        writes = any(_is_mutable(n) for n in self.host)
        outs = dict[fx.Node, fx.Node]()
        for node in self.graph.graph.nodes:
            if node not in self.host and node not in self.plain:
                continue
            copies[node] = new.node_copy(node, copies.__getitem__)
        last = copies[self.placeholders[arguments[-1]]] if arguments else new._root
        for node in crossing:  # directly after it is computed, before it is written
            with new.inserting_after(last if node.op == "placeholder" else copies[node]):
                outs[node] = self._handed_over(new, node, copies[node], writes)
        new.output((*(outs[n] for n in crossing), *(copies[n] for n in of_host)))
        new.eliminate_dead_code()
        return fx.GraphModule(self.graph, new), tuple(arguments)

    @staticmethod
    def _handed_over(new: fx.Graph, node: fx.Node, value: fx.Node, writes: bool) -> fx.Node:
        """Return the form in which a host value is passed on: a copy on the device, the value, or a clone if it is
        written later."""
        tensors = _tensors(node)
        if tensors and tensors[0].device.type == "cpu" and tensors[0].dim():
            return new.call_function(_COPY, (value,), {"device": _DEVICE})
        if tensors and tensors[0].device.type == "cpu" and writes:
            return new.call_function(_CLONE, (value,))
        return value

    def _rest(
        self, nodes: list[fx.Node], crossing: list[fx.Node], returned: list[Any]
    ) -> tuple[fx.GraphModule, tuple[int, ...]]:
        new, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        arguments = [i for i, n in enumerate(self.placeholders) if n not in self.host]
        for index in arguments:
            copies[self.placeholders[index]] = new.node_copy(self.placeholders[index])
        for node in crossing:
            copies[node] = new.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in nodes:
            copies[node] = new.node_copy(node, copies.__getitem__)
        new.output([copies[n] if isinstance(n, fx.Node) else n for n in returned])
        new.eliminate_dead_code()
        return fx.GraphModule(self.graph, new), tuple(arguments)


def _tensors_of_device(node: fx.Node) -> bool:
    return any(t.device.type != "cpu" for t in _tensors(node))
