"""Scopes of ops in locations and in XLA's metadata: `forward/blocks.2.attn`, `backward/blocks.2.attn`, `backward`.

A scope is the name of a location, which XLA keeps as `op_name` and every profiler shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FORWARD, BACKWARD = "forward", "backward"


class Scope(NamedTuple):
    """Whether a backward pass recorded an op, and the path of the module that did, or "" outside modules."""

    backward: bool
    module: str

    def __str__(self) -> str:
        """The name of the location; empty if there is nothing to say."""
        if not self.module:
            return BACKWARD if self.backward else ""
        return f"{BACKWARD if self.backward else FORWARD}/{self.module}"


OUTSIDE = Scope(False, "")
"The scope of an op of the forward pass outside modules."


def scope_of(name: str) -> Scope:
    """Return the scope in the name of a location, or in XLA's `op_name`, which may go on after the module."""
    direction, *path = name.split("/")
    if direction not in (FORWARD, BACKWARD):
        return OUTSIDE
    return Scope(direction == BACKWARD, path[0] if path else "")


def common_module(modules: Sequence[str]) -> str:
    """Return one path for an op that stands for ops of several modules: `blocks.*.attn` for blocks.0.attn and
    blocks.1.attn; "" if their paths differ in length."""
    first = modules[0].split(".")
    paths = [module.split(".") for module in dict.fromkeys(modules)]
    if any(len(path) != len(first) for path in paths):
        return ""
    return ".".join(parts[0] if len(set(parts)) == 1 else "*" for parts in zip(*paths, strict=True))
