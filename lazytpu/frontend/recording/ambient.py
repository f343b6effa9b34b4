"""Ambient state: global state of torch that affects an op's result without being an argument. This is the complete
list, and part of the key (R2).

A record depends on a switch if the switch may affect its op's result for its arguments. The edge to such a record holds
the switches' values next to the op's name, and is taken only while they are unchanged. They are read only when such an
edge is compared, so the many ops that depend on no switch pay nothing. A record keeps the values as its `settings`. Its
program is compiled for these, whatever torch is set to by then.

Other state of torch (autocast, grad mode, the default device, ...) affects the ops that a script calls, and thereby the
records; docs/recompiles.md lists each kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.torch_private import float32_matmul_precision, float32_precision
from lazytpu.ports import OpFacts
from lazytpu.trace.settings import DEFAULT_DTYPE, DETERMINISM, PRECISION


@dataclass(frozen=True, slots=True)
class Switch:
    """One piece of global state.

    `read` returns its current value, as quickly as possible. `word` names that value in a record's settings. `decides`
    tells, from an op's facts and arguments, whether its record depends on the switch.
    """

    name: str
    read: Callable[[], Any]
    word: Callable[[Any], str]
    decides: Callable[[OpOverload, OpFacts, dict[str, Any]], bool]


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, list | tuple) else []


def _may_promote(op: OpOverload, facts: OpFacts, bound: dict[str, Any]) -> bool:
    """Return whether the default dtype may matter.

    torch uses it if a dtype follows from integers, from numbers alone, or from nothing. The dtype of a floating-point
    tensor takes precedence, except in ops that create a tensor from numbers.
    """
    tensors = _tensors(list(bound.values()))
    if not tensors or not all(t.is_floating_point() or t.is_complex() for t in tensors):
        return True
    if any(a.name == "layout" for a in op._schema.arguments):
        return bound.get("dtype") is None
    return any(
        "Tensor" in str(a.type) and a.name not in facts.numbers and isinstance(bound.get(a.name), float | complex)
        for a in op._schema.arguments
    )


def _multiplies_float32(op: OpOverload, facts: OpFacts, bound: dict[str, Any]) -> bool:
    return facts.uses_precision and any(
        t.dtype in (torch.float32, torch.complex64) for t in _tensors(list(bound.values()))
    )


def _may_refuse(op: OpOverload, facts: OpFacts, bound: dict[str, Any]) -> bool:
    return op._schema.name in _NOT_DETERMINISTIC


# Ops that the CPU, and the meta functions on a miss, reject or warn about under torch.use_deterministic_algorithms.
_NOT_DETERMINISTIC = frozenset({"aten::put", "aten::put_", "aten::max_unpool2d", "aten::max_unpool3d"})


def _precisions() -> tuple[str, str]:
    """Return torch.set_float32_matmul_precision, and torch.backends.fp32_precision."""
    try:
        return float32_matmul_precision(), float32_precision("generic", "all")
    # torch reports no precision once a backend (mkldnn, cuda) was set to its own.
    except RuntimeError:
        return "highest", float32_precision("generic", "all")


# The settings of torch.backends.fp32_precision, in the words of torch.set_float32_matmul_precision.
_WORDS = {"tf32": "high", "bf16": "medium"}


def _lower(values: tuple[str, str]) -> str:
    """Return the lower of two precisions: neither names a device, so each is a permission for all devices."""
    word, generic = values[0], _WORDS.get(values[1], "highest")
    return max(word, generic, key=("highest", "high", "medium").index)


SWITCHES = (
    Switch(DEFAULT_DTYPE, torch.get_default_dtype, str, _may_promote),
    Switch(PRECISION, _precisions, _lower, _multiplies_float32),
    Switch(DETERMINISM, torch.get_deterministic_debug_mode, str, _may_refuse),
)
"Every switch that is part of the key."


def switches(op: OpOverload, facts: OpFacts, bound: dict[str, Any]) -> tuple[Switch, ...]:
    """Return the switches on which a record of `op` with the arguments `bound` depends."""
    return tuple([s for s in SWITCHES if s.decides(op, facts, bound)])


class Under:
    """An op's name in the key of an edge, with the switches' values when the edge was created. It differs from that
    name under other values."""

    __slots__ = ("name", "read", "values")

    def __init__(self, name: str, needed: tuple[Switch, ...]):
        self.name = name
        self.read = needed[0].read if len(needed) == 1 else lambda: tuple([s.read() for s in needed])
        self.values = self.read()

    def __eq__(self, other: object) -> bool:
        if other is self.name:  # the name in the keys of its kernel
            return self.read() == self.values
        if type(other) is str:
            return other == self.name and self.read() == self.values
        return type(other) is Under and (self.name, self.values) == (other.name, other.values)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"{self.name} under {self.values}"


def keyed(key: tuple[Any, ...], needed: tuple[Switch, ...]) -> tuple[Any, ...]:
    """Return the key of the edge to a new record, which depends on the switches `needed`."""
    return (Under(key[0], needed), *key[1:]) if needed else key


def settings(needed: tuple[Switch, ...]) -> tuple[tuple[str, str], ...]:
    """Return the switches' current values, for the record."""
    return tuple([(s.name, s.word(s.read())) for s in needed])
