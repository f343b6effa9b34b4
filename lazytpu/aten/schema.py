"""An op's schema: its arguments by name, its written arguments, and its functional counterpart."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload


@dataclass(frozen=True)
class OpSignature:
    """The parts of a schema that import needs.

    `written` are the names of the mutated arguments, in order. `returned` has one entry per return: the name of the
    mutated argument it aliases, or None for a new value. `views` is true if results alias arguments that are not
    written.
    """

    names: tuple[str, ...]
    defaults: dict[str, Any]
    numbers: frozenset[str]
    tensors: frozenset[str]
    written: tuple[str, ...]
    returned: tuple[str | None, ...]
    views: bool


@functools.cache
def signature(op: OpOverload) -> OpSignature:
    """The signature of `op`."""
    arguments = op._schema.arguments
    by_alias = {
        alias: a.name
        for a in arguments
        if a.alias_info is not None and a.alias_info.is_write
        for alias in a.alias_info.before_set
    }
    returned = tuple(
        next((by_alias[s] for s in r.alias_info.before_set if s in by_alias), None) if r.alias_info else None
        for r in op._schema.returns
    )
    types = {a.name: str(a.type) for a in arguments}
    return OpSignature(
        names=tuple(a.name for a in arguments),
        defaults={a.name: a.default_value for a in arguments if a.has_default_value()},
        numbers=frozenset(n for n, t in types.items() if "number" in t or "Scalar" in t),
        tensors=frozenset(n for n, t in types.items() if "Tensor" in t),
        written=tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write),
        returned=returned,
        views=any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns),
    )


def bind(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by schema name, with defaults filled in."""
    s = signature(op)
    bound = dict(zip(s.names, args, strict=False))
    bound.update(kwargs)
    for name, default in s.defaults.items():
        bound.setdefault(name, default)
    return bound


@functools.cache
def functional(op: OpOverload) -> OpOverload | None:
    """Return the overload that returns the new values that the mutating `op` writes, or None.

    aten.add_.Tensor -> aten.add.Tensor; aten.add.out -> aten.add.Tensor; aten._fused_adamw_.default ->
    aten._fused_adamw.default (whose returns are the new values of the written arguments, in order).
    """
    s = signature(op)
    namespace, _, packet_name = op._schema.name.partition("::")
    if packet_name.endswith("_") and not packet_name.endswith("__"):
        packet = getattr(getattr(torch.ops, namespace), packet_name[:-1], None)
        return getattr(packet, op._overloadname, None)
    outs = {a.name for a in op._schema.arguments if a.kwarg_only and a.name in s.written}
    if not outs:
        return None
    inputs = [(a.name, str(a.type)) for a in op._schema.arguments if a.name not in outs]
    in_place = set(s.written) - outs  # batch norm with out= writes its running statistics too
    packet = getattr(getattr(torch.ops, namespace), packet_name)
    for overload in (getattr(packet, name) for name in packet.overloads()):
        parameters = [(a.name, str(a.type)) for a in overload._schema.arguments]
        if parameters == inputs and set(signature(overload).written) == in_place:
            return overload
    return None
