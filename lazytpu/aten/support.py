"""Whether an op can be expressed: by a rule, its functional form, or a decomposition of torch's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload

from lazytpu.aten import registry
from lazytpu.aten.schema import functional, signature


def missing_rule(op: OpOverload) -> NotImplementedError:
    """The error of an op that nothing expresses: its name, and the three lines that would add it."""
    arguments = ", ".join(signature(op).names)
    return NotImplementedError(
        f"'{op}' has no rule on 'tpu' and torch has no decomposition of it. To add one, in a file of lazytpu/aten/:\n"
        f'    @rule("{op}")\n'
        f"    def {op._schema.name.partition('::')[2]}(b, {arguments}):\n"
        f"        return ...  # built from b.add, b.reduce, b.template, …; see docs/adding-an-op.md"
    )


@functools.cache
def decomposition(op: OpOverload) -> Callable[..., Any] | None:
    """torch's own decomposition of `op` into other ops, or None.

    That of a composite op is what the CPU runs too; of the others, those meant for compilers come first.
    """
    from torch._decomp import core_aten_decompositions, decomposition_table

    try:
        if op._can_decompose():
            return op.decompose
    except RuntimeError:  # an overload that only TorchScript has (aten.ldexp.default, of two numbers)
        return None
    for table in (_core_table(core_aten_decompositions), decomposition_table):
        if op in table:
            return table[op]
    return None


@functools.cache
def _core_table(make: Callable[[], Any]) -> dict[Any, Callable[..., Any]]:
    return dict(make())


def supported(op: OpOverload) -> bool:
    """Whether `op` can be expressed at all (its decomposition's own ops are checked when it is imported)."""
    if str(op) in registry.facts():
        return True
    other = functional(op) if signature(op).written else None
    return (other is not None and supported(other)) or _decomposes(op)


def _decomposes(op: OpOverload) -> bool:
    """Whether `decomposition` finds one; without torch's core table, which takes 0.1 s to make, where that can be."""
    from torch._decomp import decomposition_table

    return op in decomposition_table or decomposition(op) is not None
