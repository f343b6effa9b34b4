"""Branches and loops."""

from __future__ import annotations

from collections.abc import Sequence

from lazytpu.ir import control as ops
from lazytpu.lowering.blocks import Values, emit_block
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rules import lowers
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo


def _fill(
    e: Emission, op: ops.RegionOp, number: int, block: ir.Block, arguments: Sequence[ir.Value], kept: int
) -> None:
    """Emit a region of `op` into a block, which returns the values that the region yields and the last `kept`
    arguments."""
    source = op.regions[number].block
    with ir.InsertionPoint(block):
        values = Values(zip(source.args, arguments, strict=True))
        emit_block(e, source, values)
        hlo.return_([*(values[value] for value in op.yielded(number)), *arguments[len(arguments) - kept :]])


@lowers(ops.IfOp)
def if_(e: Emission, op: ops.IfOp, condition: ir.Value, *operands: ir.Value) -> Sequence[ir.Value]:
    """StableHLO's regions of an if have no arguments: they use values from outside."""
    lowered = hlo.IfOp([e.result(op, i) for i in range(len(op.results))], condition)
    for number, region in enumerate((lowered.true_branch, lowered.false_branch)):
        _fill(e, op, number, region.blocks.append(), operands, 0)
    return list(lowered.results)


@lowers(ops.WhileOp)
def while_(e: Emission, op: ops.WhileOp, *operands: ir.Value) -> Sequence[ir.Value]:
    """Invariants are carried unchanged, as in JAX's loops: XLA sees that they do not vary."""
    types = [value.type for value in operands]
    lowered = hlo.WhileOp(types, list(operands))
    locations = [ir.Location.current] * len(types)
    for number, (region, kept) in enumerate(((lowered.cond, 0), (lowered.body, len(operands) - op.count))):
        block = region.blocks.append(*types, arg_locs=locations)
        _fill(e, op, number, block, list(block.arguments), kept)
    return list(lowered.results)[: op.count]
