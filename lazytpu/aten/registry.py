"""The table of rules: ATen overload name -> what it means in the dialect."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazytpu.aten.scalars import Scalar
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


@dataclass(frozen=True)
class Rule:
    """How one ATen overload is expressed in the dialect.

    `numbers` are the schema names of arguments whose value is a run-time number (R3); `random` rules take the keyword
    `rng=(seed, offset)`, two 0-d ui64 values (R7).
    """

    name: str
    function: Callable[..., Any]
    numbers: frozenset[str]
    random: bool


RULES: dict[str, Rule] = {}


def rule(*names: str, numbers: Iterable[str] = (), random: bool = False) -> Callable[[Any], Any]:
    """Register the decorated function as the rule of the ATen overloads `names` ("aten.add.Tensor").

    Raises ValueError when an overload has a rule already: one op, one rule.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has a rule already, in {RULES[name].function.__module__}")
            RULES[name] = Rule(name, function, frozenset(numbers), random)
        return function

    return register


_families: list[str] = []


def load() -> dict[str, Rule]:
    """Import every family of this package once, so that all rules are registered; returns the table."""
    if not _families:
        package = importlib.import_module("lazytpu.aten")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"lazytpu.aten.{module.name}")
            _families.append(module.name)
    return RULES


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """numpy's broadcast of shapes; raises ValueError naming both when they do not fit."""
    rank = max((len(s) for s in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if result[i] not in (1, size):
                    raise ValueError(f"shapes {' and '.join(map(str, shapes))} do not broadcast")
                result[i] = size
    return tuple(result)


def promote(
    b: Builder, *args: SSAValue | Scalar, to: str, shape: tuple[int, ...] | None = None
) -> tuple[SSAValue, ...]:
    """Operands of a pointwise op: converted to dtype `to`, and broadcast to one shape (their own, or `shape`)."""
    values = [b.scalar(a, to) if isinstance(a, Scalar) else b.convert(a, to) for a in args]
    common = broadcast_shape(*map(shape_of, values)) if shape is None else shape
    return tuple(b.broadcast_to(v, common) for v in values)


def dtype_and_shape(value: SSAValue) -> tuple[str, tuple[int, ...]]:
    """What a value is, for comparing with `b.out`."""
    return dtype_of(value), shape_of(value)
