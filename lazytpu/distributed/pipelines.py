"""Zero-bubble schedules of pipelines, which compute the gradients of weights apart from those of inputs.

torch collects what belongs together there in sets of nodes, whose order is that of their addresses: another one in each
step, and so another program. Here it is the order of the parameters and of the graph.
"""

from __future__ import annotations

from functools import wraps
from typing import Any


def ordered(native: Any) -> Any:
    """`native`, which makes these groups, with the order that repeats."""

    @wraps(native)
    def get_param_groups(inputs: list[Any], params: list[Any], reverse_edges: dict[Any, list[Any]]) -> list[Any]:
        edges = (node for target, sources in reverse_edges.items() for node in (target, *sources))
        places = {node: place for place, node in enumerate(dict.fromkeys((*params, *edges)))}
        groups = native(inputs, params, reverse_edges)
        for group in groups:
            for nodes in ("params", "intermediates"):
                group[nodes] = sorted(group[nodes], key=places.__getitem__)
        return sorted(groups, key=lambda group: places[group["params"][0]])

    return get_param_groups
