"""Sharding rules of kernels: which dimensions of operands and results may be divided among devices together.

`"rows k, k columns -> rows columns"` has a list of names for each operand and each result, one for each dimension, as
in einsum. Dimensions of one name are divided identically. A name that is in no result is summed over, or otherwise
reduced, so partial results have to be combined. (The notation is that of Shardy's rules in JAX, without compound
dimensions.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z_]\w*")

Names = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class ShardingRule:
    """The names of the dimensions of each operand and of each result."""

    operands: Names
    results: Names

    @classmethod
    def parse(cls, text: str) -> ShardingRule:
        """Parse a rule. Raises ValueError for a malformed text."""
        sides = text.split("->")
        if len(sides) != 2:
            raise ValueError(f"sharding rule {text!r} has {len(sides) - 1} arrows; expected operands -> results")
        return cls(*(_side(text, side) for side in sides))

    def check(self, operands: Sequence[Sequence[int]], results: Sequence[Sequence[int]]) -> None:
        """Raise ValueError unless the rule fits operands and results of these shapes."""
        sizes: dict[str, int] = {}
        for role, names, shapes in (("operand", self.operands, operands), ("result", self.results, results)):
            if len(names) != len(shapes):
                raise ValueError(f"sharding rule '{self}' is for {len(names)} {role}s; there are {len(shapes)}")
            for i, (dims, shape) in enumerate(zip(names, shapes, strict=True)):
                if len(dims) != len(shape):
                    raise ValueError(
                        f"sharding rule '{self}' names {len(dims)} dimensions of {role} {i}, whose shape is "
                        f"{list(shape)}"
                    )
                for name, size in zip(dims, shape, strict=True):
                    if sizes.setdefault(name, size) != size:
                        raise ValueError(
                            f"sharding rule '{self}' divides dimensions of sizes {sizes[name]} and {size} alike: both "
                            f"are named {name}"
                        )

    def __str__(self) -> str:
        return " -> ".join(", ".join(" ".join(dims) for dims in side) for side in (self.operands, self.results))


def _side(text: str, side: str) -> Names:
    lists = tuple(tuple(array.split()) for array in side.split(",")) if side.strip() else ()
    for dims in lists:
        for name in dims:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"sharding rule {text!r} has {name!r} for a dimension; expected a name: 'rows k, k columns -> rows "
                    "columns' names those of two operands and a result"
                )
        if len(set(dims)) != len(dims):
            raise ValueError(f"sharding rule {text!r} names two dimensions of one array alike: {' '.join(dims)!r}")
    return lists
