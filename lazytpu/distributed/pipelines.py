"""Zero-bubble pipeline schedules, which compute the gradients of weights separately from the gradients of inputs.

torch collects parameter groups in sets of graph nodes, whose order depends on addresses. So each step would have
another order, and compile another program. Here the groups are sorted by the order of the parameters and the graph.
"""

from __future__ import annotations

from functools import wraps
from typing import Any


def ordered(native: Any) -> Any:
    """Wrap torch's `get_param_groups` (`native`), so that its result has the same order in every step."""

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
