"""Partition of a joint graph: the forward graph saves the same tensors as eager code, except views of tensors that it
could save itself.

The backward graph repeats a view of an input or activation, which is free: a view is part of how a record reads its
operand. The same holds for each view that `split` and similar ops return. A saved view would be a tensor to create at
each call. It would also not share the version counter of its base, so autograd could not detect an in-place change of
the base.

It also repeats pure nodes with data-dependent sizes. Eager code saves their results, which the script cannot change. So
where it could change an operand of theirs, the forward graph saves a copy of that.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from lazytpu.dynamo.counted_part import draws, writes
from lazytpu.frontend.torch_private import default_partition, is_unbacked, pytree


def partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the forward and the backward graph of a joint graph."""
    written, copies = _from_written(joint), _Copies(joint)
    for node in reversed(list(joint.graph.nodes)):  # a view of a view comes before its base
        if _is_view(node):
            _take_again(joint.graph, node)
        elif _is_counted(node) and node not in written:
            _take_again(joint.graph, node, copies)
    forward, backward = default_partition(joint, inputs, **options)
    _forget_checked(forward, backward)
    return forward, backward


def _from_written(joint: fx.GraphModule) -> set[fx.Node]:
    """Return the inputs that a graph writes, and the nodes that would read them again if they were repeated."""
    writes = joint.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    written: set[fx.Node] = {node.all_input_nodes[0] for node in writes}
    for node in joint.graph.nodes:
        if (_is_view(node) or _is_counted(node)) and not written.isdisjoint(node.all_input_nodes):
            written.add(node)
    return written


def _forget_checked(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Do not save data-dependent sizes that the backward graph only checks again."""
    output = next(iter(reversed(forward.graph.nodes)))
    for size in [n for n in backward.graph.nodes if n.op == "placeholder" and _is_size(n.meta.get("val"))]:
        if all(checks := [_checks(user) for user in size.users]) or not checks:
            for node in [node for users in checks for node in users or ()]:
                if not node._erased:
                    backward.graph.erase_node(node)
            backward.graph.erase_node(size)
            saved = tuple([result for result in output.args[0] if getattr(result, "name", None) != size.name])  # pyright: ignore[reportGeneralTypeIssues]
            output.args = (saved,)
    forward.recompile()
    backward.recompile()


def _checks(node: fx.Node) -> list[fx.Node] | None:
    """Return the nodes that check a size, and `node`, which uses it, in reverse order; None if it has another
    use."""
    if node.target is torch.ops.aten._assert_scalar.default:
        return [node]
    if node.target not in (operator.ge, operator.le, operator.gt, operator.lt, operator.eq, operator.ne):
        return None
    nested = [_checks(user) for user in node.users]
    return None if None in nested else [*(check for checks in nested for check in checks or ()), node]


def _is_size(value: Any) -> bool:
    return isinstance(value, torch.SymInt) and is_unbacked(value)


def _is_view(node: fx.Node) -> bool:
    if _is_backward(node) or "recompute" in node.meta:
        return False
    op = node.target
    if op is operator.getitem:  # one view out of a list
        return _is_view(node.all_input_nodes[0])
    if not isinstance(op, OpOverload):
        return False
    results = op._schema.returns
    alias = results[0].alias_info if len(results) == 1 else None
    return alias is not None and not alias.is_write


def _is_counted(node: fx.Node) -> bool:
    """Return whether a node has a data-dependent size and can be repeated with the same result.

    Saved, it would be a result of that size, which has to be read (`lazytpu.dynamo.counted`).
    """
    if _is_backward(node) or node.op != "call_function" or "recompute" in node.meta:
        return False
    if node.target is operator.getitem and not _is_counted(node.all_input_nodes[0]):  # such as that of a random op
        return False
    if draws(node) or writes(node):
        return False
    sizes = [n for t in pytree.tree_leaves(node.meta.get("val")) for n in (t.shape if hasattr(t, "shape") else (t,))]
    return any(_is_size(size) for size in sizes)


def _is_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


class _Copies:
    """The copies that a forward graph saves of operands of repeated nodes."""

    def __init__(self, joint: fx.GraphModule) -> None:
        (output,) = joint.graph.find_nodes(op="output")
        self._exposed = set(map(_base, output.all_input_nodes))
        self._copies: dict[fx.Node, fx.Node] = {}

    def of(self, operand: fx.Node, node: fx.Node) -> fx.Node:
        """Return the operand of a repeated `node`, or a copy of it that the script cannot change."""
        value, base = operand.meta.get("val"), _base(operand)
        if not isinstance(value, torch.Tensor) or _is_counted(operand) or _is_backward(operand):
            return operand
        if base.op != "placeholder" and base not in self._exposed:
            return operand
        if operand not in self._copies:
            with node.graph.inserting_before(node):
                copied = node.graph.call_function(torch.ops.aten.clone.default, (operand,))
            copied.meta["val"] = value.clone()
            self._copies[operand] = copied
        elif self._copies[operand] > node:
            node.prepend(self._copies[operand])
        return self._copies[operand]


def _base(node: fx.Node) -> fx.Node:
    """Return the node whose memory the result of a node shares."""
    while _is_view(node):
        node = node.all_input_nodes[0]
    return node


def _take_again(graph: fx.Graph, node: fx.Node, copies: _Copies | None = None) -> None:
    """Let the backward users of a node use a copy of it in the backward graph, which reads `copies` of its operands."""
    users = [user for user in node.users if _is_backward(user)]
    if not users:
        return
    with graph.inserting_before(min(users)):
        repeated = graph.node_copy(node)
    repeated.meta["partitioner_tag"] = "is_backward"
    for user in users:
        user.replace_input_with(node, repeated)
    if copies is not None:
        for operand in list(repeated.all_input_nodes):
            repeated.replace_input_with(operand, copies.of(operand, node))
