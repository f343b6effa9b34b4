"""Whether an op can be imported: by a rule, its functional form, or one of torch's decompositions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload

from lazytpu.aten import registry
from lazytpu.aten.schema import functional, signature


def missing_rule(op: OpOverload) -> NotImplementedError:
    """The error for an op that cannot be imported: its name, and the three lines that would add it."""
    arguments = ", ".join(signature(op).names)
    return NotImplementedError(
        f"'{op}' has no rule on 'tpu', and torch has no decomposition for it. To add one, in a file of lazytpu/aten/:\n"
        f'    @rule("{op}")\n'
        f"    def {op._schema.name.partition('::')[2]}(b, {arguments}):\n"
        f"        return ...  # built from b.add, b.reduce, b.template, …; see docs/adding-an-op.md"
    )


@functools.cache
def decomposition(op: OpOverload) -> Callable[..., Any] | None:
    """torch's own decomposition of `op` into other ops, or None.

    A composite op's own decomposition, which the CPU runs too, comes first, then those meant for compilers.
    """
    from torch._decomp import core_aten_decompositions, decomposition_table

    try:
        if op._can_decompose():
            return op.decompose
    except RuntimeError:  # an overload for TorchScript alone (aten.ldexp.default, of two numbers)
        return None
    for table in (_core_table(core_aten_decompositions), decomposition_table):
        if op in table:
            return table[op]
    return None


@functools.cache
def _core_table(make: Callable[[], Any]) -> dict[Any, Callable[..., Any]]:
    return dict(make())


def supported(op: OpOverload) -> bool:
    """Whether `op` can be imported (the ops of its decomposition are only checked at import)."""
    if str(op) in registry.facts():
        return True
    counterpart = functional(op) if signature(op).written else None
    return (counterpart is not None and supported(counterpart)) or _decomposes(op)


def _decomposes(op: OpOverload) -> bool:
    """Whether `op` has a decomposition. Avoids building torch's core table, which takes 0.1 s, where possible."""
    from torch._decomp import decomposition_table

    return op in decomposition_table or decomposition(op) is not None
