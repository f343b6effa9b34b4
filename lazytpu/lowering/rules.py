"""The table of lowering rules: op class -> function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from xdsl.ir import Operation

from lazytpu.ir.base import TensorOp
from lazytpu.runtime.xla.mlir import ir

Lowered: TypeAlias = "ir.Value | Sequence[ir.Value]"
"""One value, or one for each result of the op."""

Rule: TypeAlias = Callable[..., Lowered]
"""rule(emission, op, *operands): builds StableHLO at the current insertion point and location."""

RULES: dict[type[Operation], Rule] = {}

Function = TypeVar("Function", bound=Callable[..., Any])


def lowers(kind: type[TensorOp]) -> Callable[[Function], Function]:
    """Register the decorated function as the lowering rule of an op class. Raises ValueError if it has one already."""

    def register(function: Function) -> Function:
        if kind in RULES:
            raise ValueError(
                f"{kind.name} has two lowering rules: {RULES[kind].__qualname__} and {function.__qualname__}"
            )
        RULES[kind] = function
        return function

    return register
