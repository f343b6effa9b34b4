"""The part of a graph that has sizes which depend on values, apart from the rest of the graph.

`x[mask]` has such a size, and so has each result until a reduction or a scatter. The part consists of the nodes with
such sizes and the nodes between them. It becomes one function (`lazytpu.dynamo.counted`), whose arguments and results
have known sizes; the rest of the graph calls it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from lazytpu.dynamo.placeholders import NotOneRecord
from lazytpu.frontend import activation
from lazytpu.frontend.torch_private import pytree


@dataclass(frozen=True)
class CountedPart:
    """A part of a graph as a separate graph. `inputs` are the nodes whose values it takes, and `outputs` the nodes
    whose values it returns."""

    module: fx.GraphModule
    inputs: Sequence[fx.Node]
    outputs: Sequence[fx.Node]
    nodes: frozenset[fx.Node]
    later: frozenset[fx.Node]
    "The other nodes that need its results, and the nodes that write."


def known_sizes(graph: fx.GraphModule, args: Sequence[Any]) -> dict[Any, int]:
    """Return the values of the graph's symbols that are sizes of its arguments, or arguments themselves."""
    values = dict[Any, int]()
    for node, arg in zip(graph.graph.find_nodes(op="placeholder"), args, strict=False):
        value = node.meta.get("val")
        pairs = [(value, arg)]
        if isinstance(value, torch.Tensor) and isinstance(arg, torch.Tensor):
            pairs = list(zip(value.shape, arg.shape, strict=True))
        for size, number in pairs:
            if isinstance(size, torch.SymInt) and type(number) is int:
                values[size.node.expr] = number
    return values


def numbers_of(tensor: torch.Tensor) -> list[Any]:
    """Return the sizes, strides and storage offset of a tensor; none for a sparse one."""
    return [*tensor.shape, *tensor.stride(), tensor.storage_offset()] if tensor.layout is torch.strided else []


def is_counted(node: fx.Node, known: Set[Any]) -> bool:
    """Return whether a size of a node, or of its arguments, depends on symbols that are not `known`."""
    return has_symbols([taken.meta.get("val") for taken in (node, *node.all_input_nodes)], known)


def has_symbols(values: Any, known: Set[Any]) -> bool:
    """Return whether numbers among these values, or of tensors among them, depend on symbols that are not `known`."""
    leaves = pytree.tree_leaves(values)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    numbers = [*leaves, *[number for tensor in tensors for number in numbers_of(tensor)]]
    symbolic = [number for number in numbers if isinstance(number, torch.SymInt | torch.SymBool | torch.SymFloat)]
    return any(not number.node.expr.free_symbols <= known for number in symbolic)


def counted_part(graph: fx.GraphModule, known: frozenset[Any]) -> CountedPart:
    """Return the part of a graph with sizes that depend on values. Raises NotOneRecord if random ops would change their
    order, or if the part reads memory that the graph writes."""
    order: list[fx.Node] = [node for node in graph.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
    sized = {node for node in order if is_counted(node, known)}
    after, before = set(sized), set(sized)
    for node in order:
        if any(neighbor in after for neighbor in node.all_input_nodes):
            after.add(node)
    for node in reversed(order):
        if any(neighbor in before for neighbor in node.users):
            before.add(node)
    nodes = after & before
    for node in order:  # a list is no result of the part, but its elements are
        if node.target is operator.getitem and node.all_input_nodes[0] in nodes:
            nodes.add(node)
    later = after - nodes
    for node in order:
        if writes(node) or any(neighbor in later for neighbor in node.all_input_nodes):
            later.add(node)
    if later & nodes:
        raise NotOneRecord("it counts in memory that it writes")
    _check_order([node for node in order if draws(node)], nodes, later)

    # The graph of the part: its inputs are placeholders.
    new, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    inputs = list(dict.fromkeys(neighbor for node in order if node in nodes for neighbor in node.all_input_nodes))
    inputs = [node for node in inputs if node not in nodes]
    for node in inputs:
        copies[node] = new.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in order:
        if node in nodes:
            copies[node] = new.node_copy(node, copies.__getitem__)
    outputs = [node for node in order if node in nodes and not nodes.issuperset(node.users)]
    new.output(tuple([copies[node] for node in outputs]))
    return CountedPart(fx.GraphModule(graph, new), inputs, outputs, frozenset(nodes), frozenset(later))


def calling(
    graph: fx.GraphModule, part: CountedPart, call: Callable[[fx.Graph, list[fx.Node]], list[Any]]
) -> fx.GraphModule:
    """Return the graph with a call in place of the part."""
    new, copies = fx.Graph(), dict[Any, Any]()
    (output,) = graph.graph.find_nodes(op="output")
    other_nodes = [node for node in graph.graph.nodes if node not in part.nodes and node is not output]
    for node in [n for n in other_nodes if n not in part.later]:
        copies[node] = new.node_copy(node, copies.__getitem__)
    for node, result in zip(part.outputs, call(new, [copies[node] for node in part.inputs]), strict=True):
        copies[node] = result
        if isinstance(result, fx.Node):
            result.meta = {**node.meta, **result.meta}
    for node in [n for n in other_nodes if n in part.later]:
        copies[node] = new.node_copy(node, copies.__getitem__)
    new.output(fx.map_arg(output.args[0], copies.__getitem__))
    return fx.GraphModule(graph, new)


def ops_of(node: fx.Node) -> Iterator[OpOverload]:
    """Iterate over the ops that a node runs: its target, an op among its arguments, and those in the branches and
    bodies of control flow."""
    yield from (op for op in pytree.tree_leaves((node.target, node.args, node.kwargs)) if isinstance(op, OpOverload))
    for source in node.all_input_nodes:
        if source.op == "get_attr":
            body = operator.attrgetter(str(source.target))(source.graph.owning_module)
            for inner in body.graph.nodes if isinstance(body, fx.GraphModule) else ():
                yield from ops_of(inner)


def writes(node: fx.Node) -> bool:
    """Return whether a node writes its arguments."""
    return any(op._schema.is_mutable for op in ops_of(node))


def draws(node: fx.Node) -> bool:
    """Return whether a node may draw random numbers."""
    return any(map(_may_draw, ops_of(node)))


def is_opaque(op: OpOverload) -> bool:
    """Return whether an op is a user's Python function, of which nothing is known."""
    return op.namespace not in ("aten", "prims") and str(op) not in activation.engine().rules()


def _may_draw(op: OpOverload) -> bool:
    if torch.Tag.nondeterministic_seeded in op.tags or is_opaque(op):
        return True
    return str(op) in activation.engine().rules() and activation.engine().facts(op).random


def _check_order(draws: Sequence[fx.Node], nodes: set[fx.Node], later: set[fx.Node]) -> None:
    """Raise NotOneRecord unless nodes that draw random numbers keep their order."""
    if any(node in nodes for node in draws):
        raise NotOneRecord("it counts, and draws random numbers of such a size")
    late = [node in later for node in draws]
    if late != sorted(late):
        raise NotOneRecord("it draws random numbers before and after it counts")
