"""Emits the ops of a block, of a function or of a region, by their lowering rules."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import CallOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import IsTerminator

from lazytpu.ir.location import describe
from lazytpu.ir.types import shape_of, type_of
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.errors import LoweringError
from lazytpu.lowering.locations import to_mlir
from lazytpu.lowering.rules import RULES
from lazytpu.runtime.xla.mlir import ir


class Values(dict[SSAValue, ir.Value]):
    """The MLIR value of each value of a function."""

    def __missing__(self, value: SSAValue) -> ir.Value:
        owner = value.owner.name if isinstance(value.owner, Operation) else "another function"
        raise LoweringError(f"an op uses a value of {owner} before its definition, or outside its scope")


def emit_block(e: Emission, block: Block, values: Values) -> None:
    """Emit a block's ops at the current insertion point, without its terminator. `values` has the block's arguments,
    and gets the results of the ops."""
    locations: dict[int, ir.Location] = {}
    for op in block.ops:
        if op.has_trait(IsTerminator):
            continue
        # Ops of one source line share one xDSL location.
        location = locations.get(id(op.location))
        if location is None:
            location = locations[id(op.location)] = to_mlir(op.location)
        if all(v in e.constants or 0 in shape_of(v) for v in op.operands):
            e.constants.update(op.results)
        with location:
            lowered = _emit_op(e, op, [values[v] for v in op.operands])
        if isinstance(lowered, ir.Value):
            values[op.results[0]] = lowered
        else:
            values.update(zip(op.results, lowered, strict=True))


def _emit_op(e: Emission, op: Operation, operands: Sequence[ir.Value]) -> ir.Value | Sequence[ir.Value]:
    if isinstance(op, CallOp):
        return e.call(op.callee.string_value(), operands, [e.type(type_of(result)) for result in op.results])
    rule = RULES.get(type(op))
    if rule is None:
        raise NotImplementedError(
            f"{op.name}{_at(op)} has no lowering rule. Add one to the file of its family in "
            f"lazytpu/lowering: a function rule(emission, op, *operands) decorated with @lowers({type(op).__name__})"
        )
    try:
        return rule(e, op, *operands)
    except (ir.MLIRError, ValueError, TypeError, RuntimeError, KeyError) as error:
        if op.regions and isinstance(error, NotImplementedError):
            raise  # it names the op inside
        raise LoweringError(f"cannot lower {op.name}{_at(op)}: {error}\n{op}") from error


def _at(op: Operation) -> str:
    line = describe(op.location)
    return f" at {line}" if line else ""
