"""The `lazytpu` dialect: all ops of the families."""

from __future__ import annotations

from types import ModuleType

from xdsl.ir import Dialect

from lazytpu.ir import (
    attention,
    collectives,
    constants,
    contractions,
    control,
    indexing,
    jax_call,
    pointwise,
    random,
    reductions,
    shape,
    sorting,
    template,
)
from lazytpu.ir.base import TensorOp
from lazytpu.ir.bodies import BodyResources

FAMILIES = (
    constants,
    pointwise,
    shape,
    reductions,
    contractions,
    indexing,
    random,
    sorting,
    template,
    jax_call,
    attention,
    collectives,
    control,
)


def _ops_of(family: ModuleType) -> list[type[TensorOp]]:
    ops = [v for v in vars(family).values() if isinstance(v, type) and issubclass(v, TensorOp) and "name" in vars(v)]
    return sorted(ops, key=lambda op: op.name)


OPS: dict[str, type[TensorOp]] = {op.name.removeprefix("lazytpu."): op for f in FAMILIES for op in _ops_of(f)}
"All ops of the dialect by mnemonic, without the terminator of regions."

LAZYTPU = Dialect("lazytpu", [*OPS.values(), control.YieldOp], [], [BodyResources()])
