"""Functions of this process that a program calls: LAPACK's, those registered with jax.ffi, callbacks into Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.mlir import ir


def called_by(module: ir.Module) -> list[str]:
    """Their names, for the program of a module. What XLA itself brings along is not among them."""
    targets: set[str] = set()

    def look(op: Any) -> ir.WalkResult:
        if "call_target_name" in op.attributes:
            targets.add(ir.StringAttr(op.attributes["call_target_name"]).value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    return sorted(targets & client.registered_functions())


def available(names: Sequence[str]) -> bool:
    """Whether this process has all of those functions, having made them ready: a program that is loaded calls them by
    name, and XLA checks nothing."""
    if any(name.startswith("lapack_") for name in names):
        # Lowering does this in a process that compiles. Without it the program calls address 0. 0.5 s: it loads scipy.
        client.prepare_lapack()
    return client.registered_functions().issuperset(names)
