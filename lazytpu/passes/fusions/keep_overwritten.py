"""`keep-overwritten`: do not write a slice in place if it is computed from overwritten elements.

    %1 = lazytpu.slice %0 starts = [0] limits = [3] ...      %1 = lazytpu.slice %0 starts = [0] limits = [3] ...
    %2 = lazytpu.dynamic_update_slice %0, %1, %one     ->    %2 = lazytpu.pad %1 ..., low = [1] ...
                                                             %3 = lazytpu.select %written, %2, %0

XLA:CPU fuses a slice of the overwritten array into the loop that writes it in place, if a reshape is between them, and
then reads elements that the loop has already written (openxla/xla#49176). So `x[1:] = x[:-1]` becomes a selection
between the shifted array and the old one. A slice that is computed element by element from the same place, as in
`x[i] *= 2`, stays.

Needs: to run after all passes that rewrite ops. Guarantees: the same bits. Updates at starts that are no constants
stay, and so do updates in the bodies of custom kernels. A rewritten update costs one pass over the array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from lazytpu.ir.binary import BinaryOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.indexing import DynamicUpdateSliceOp
from lazytpu.ir.pointwise import ClampOp, CompareOp, ConvertOp, SelectOp
from lazytpu.ir.shape import ReshapeOp, SliceOp, TransposeOp
from lazytpu.ir.types import Shape, dtype_of, ints, shape_of
from lazytpu.ir.unary import UnaryOp
from lazytpu.passes.fusions.barriers import UNFUSED
from lazytpu.passes.patterns.indexing import constant_starts
from lazytpu.passes.regions import blocks

_IN_ORDER = (UnaryOp, BinaryOp, CompareOp, SelectOp, ClampOp, ConvertOp, ReshapeOp)
"""Ops that keep all elements of their operands, in the same order."""
_SAME_MEMORY = (ReshapeOp, TransposeOp)
"""Ops whose result may share the memory of their operand."""


@dataclass(frozen=True)
class KeepOverwrittenPass(ModulePass):
    """Writes slices that depend on other elements of the array without updating it in place."""

    name = "keep-overwritten"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in blocks(op):
            order = {inner: i for i, inner in enumerate(block.ops)}
            for update in order:
                if isinstance(update, DynamicUpdateSliceOp):
                    _rewrite(block, update, order)


def _rewrite(block: Block, op: DynamicUpdateSliceOp, order: Mapping[Operation, int]) -> None:
    x, update = op.operands[:2]
    starts = constant_starts(op.operands[2:], shape_of(x), shape_of(update))
    if starts is None or not _reads_elsewhere(update, x, starts, order):
        return
    shape, counts = shape_of(x), shape_of(update)
    high = [size - start - count for size, start, count in zip(shape, starts, counts, strict=True)]
    b = Builder(block, op)
    with b.at(op.location):
        inside = b.pad(b.constant(True, "i1", counts), b.constant(False, "i1"), starts, high)
        shifted = b.pad(update, b.constant(0, dtype_of(x)), starts, high)
        written = b.select(inside, shifted, x)
    op.results[0].replace_all_uses_with(written)
    op.detach()
    op.erase()


def _reads_elsewhere(update: SSAValue, x: SSAValue, starts: Shape, order: Mapping[Operation, int]) -> bool:
    """Whether one loop may compute an element of `update` from another element of `x` than the one it overwrites."""
    source = _source(x)
    first = order.get(source.owner, -1) if isinstance(source.owner, Operation) else -1
    if not x.has_more_than_one_use() and not source.has_more_than_one_use():
        return False
    limits = tuple(start + count for start, count in zip(starts, shape_of(update), strict=True))
    remaining, seen = [(update, True)], set[tuple[SSAValue, bool]]()
    while remaining:
        value, in_order = remaining.pop()
        if (value, in_order) in seen:
            continue
        seen.add((value, in_order))
        if value is source:
            return True
        op = value.owner
        if isinstance(op, (Block, *UNFUSED)) or order.get(op, first) < first:
            continue
        if in_order and isinstance(op, SliceOp) and op.operand is x and _window(op) == (starts, limits):
            continue
        remaining += [(operand, in_order and isinstance(op, _IN_ORDER)) for operand in op.operands]
    return False


def _source(value: SSAValue) -> SSAValue:
    while isinstance(value.owner, _SAME_MEMORY):
        value = value.owner.operand
    return value


def _window(op: SliceOp) -> tuple[Shape, Shape] | None:
    """(starts, limits) of a slice without strides."""
    return (ints(op.starts), ints(op.limits)) if set(ints(op.strides)) <= {1} else None
