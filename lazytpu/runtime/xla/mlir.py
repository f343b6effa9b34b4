"""MLIR and StableHLO in Python, and every name of jaxlib that lazytpu uses: all of jaxlib is private.

`CHECKED` lists the releases against which each name was checked (docs/versions.md). Other modules of lazytpu import
these names from here. Contexts come from `lazytpu.runtime.xla.client.mlir_context`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lazytpu.runtime.xla.jax_private  # noqa: F401  (first: jax sets jaxlib's log level, which is fixed once jaxlib is loaded)

# isort: split
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _stablehlo
from jaxlib.mlir.dialects import chlo, func, stablehlo

__all__ = ["chlo", "func", "ir", "passmanager", "stablehlo"]

CHECKED = ("0.10", "0.11", "0.12")

_stablehlo.register_stablehlo_passes()


def legalize_chlo(module: ir.Module) -> None:
    """Rewrite CHLO ops to StableHLO in place, for the reference interpreter, which lacks CHLO. XLA accepts both."""
    with module.context:
        passmanager.PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(module.operation)


def eval_module(module: ir.Module, arguments: Sequence[ir.Attribute]) -> list[ir.Attribute]:
    """Run `@main` in StableHLO's reference interpreter (see `lazytpu.runtime.xla.evaluate`)."""
    return list(_stablehlo.eval_module(module, list(arguments)))


def drop_locations(module: Any) -> None:
    """Remove the source lines of a module's ops."""

    def drop(op: ir.Operation) -> ir.WalkResult:
        op.location = ir.Location.unknown(module.context)
        return ir.WalkResult.ADVANCE

    module.operation.walk(drop)


def count_ops(module: ir.Module) -> int:
    """Return the number of ops in a module, including nested functions and regions. Takes 0.5 ms for 1,000."""
    count = 0

    def visit(_: ir.Operation) -> ir.WalkResult:
        nonlocal count
        count += 1
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return count


def portable_artifact(module: ir.Module) -> bytes:
    """Return the module in the stable serialization format of StableHLO."""
    return bytes(stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version()))
