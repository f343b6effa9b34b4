"""What a forward graph keeps for its backward graph: as in eager code, but never a view of what it could keep itself.

A view of an input or of an activation is taken again in the backward graph, where it costs nothing: it is part of how a
record's operand is read. So is each of the views that `split` and the like return together. Kept, it would be a tensor
to create at each call, and one that does not share its base's version: autograd could not tell that the base was
changed in place.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx
from torch._ops import OpOverload

from lazytpu.frontend.torch_private import default_partition


def partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward graph of a joint graph."""
    for node in reversed(list(joint.graph.nodes)):  # a view of a view, and then the one it is of
        if _is_view(node):
            _take_again(joint.graph, node)
    return default_partition(joint, inputs, **options)


def _is_view(node: fx.Node) -> bool:
    if _is_backward(node) or "recompute" in node.meta:
        return False
    op = node.target
    if op is operator.getitem:  # one of the views of a list
        return _is_view(node.all_input_nodes[0])
    if not isinstance(op, OpOverload):
        return False
    results = op._schema.returns
    alias = results[0].alias_info if len(results) == 1 else None
    return alias is not None and not alias.is_write


def _is_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


def _take_again(graph: fx.Graph, view: fx.Node) -> None:
    """Let the backward users of a view use a copy of it, made by the backward graph."""
    users = [user for user in view.users if _is_backward(user)]
    if not users:
        return
    with graph.inserting_before(min(users)):
        again = graph.node_copy(view)
    again.meta["partitioner_tag"] = "is_backward"
    for user in users:
        user.replace_input_with(view, again)
