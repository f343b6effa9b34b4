"""Host functions that a program calls: LAPACK's, those registered with jax.ffi, and callbacks into Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.mlir import ir


def called_by(module: ir.Module) -> list[str]:
    """Return the names of the host functions that the program of a module calls, without XLA's own."""
    targets: set[str] = set()

    def look(op: Any) -> ir.WalkResult:
        if "call_target_name" in op.attributes:
            targets.add(ir.StringAttr(op.attributes["call_target_name"]).value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    return sorted(targets & client.registered_functions())


def available(names: Sequence[str]) -> bool:
    """Whether this process has all of these functions. Makes LAPACK's ready first: a loaded program calls functions by
    name, and XLA does not check them."""
    if any(name.startswith("lapack_") for name in names):
        # In a process that compiles, lowering does this. Without it the program calls address 0. Takes 0.5 s, since it
        # loads scipy.
        client.prepare_lapack()
    return client.registered_functions().issuperset(names)
