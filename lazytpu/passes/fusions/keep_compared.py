"""`keep-compared`: compute each compared value only once.

    %1 = lazytpu.add %0, %a                        %1 = lazytpu.add %0, %a
    %2 = lazytpu.reduce max %1 dims = [1]    ->    %2 = lazytpu.barrier %1
    %3 = lazytpu.broadcast_in_dim %2 ...           %3 = lazytpu.reduce max %2 dims = [1]
    %4 = lazytpu.compare EQ %1, %3                 %4 = lazytpu.broadcast_in_dim %3 ...
                                                   %5 = lazytpu.compare EQ %2, %4

XLA:CPU recomputes a value in each fusion that uses it, and may round it differently there: a product and a sum may be a
fused multiply-add in one loop but not in another. Then no element equals the maximum, argmax finds no index, and a
threshold selects other elements than the ones above it. So a float that is compared with another computed value and
also used elsewhere is materialized, and so is the operand of `argreduce`, which compares to find its index.

Needs: to run after all passes that rewrite ops. Guarantees: compared values equal the results of single ops.
Each barrier costs one pass over memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from lazytpu.ir.pointwise import CompareOp
from lazytpu.ir.reductions import ArgreduceOp
from lazytpu.ir.shape import BroadcastInDimOp, ReshapeOp, SliceOp, TransposeOp
from lazytpu.ir.types import dtype_of, is_complex, is_float
from lazytpu.passes.fusions.barriers import UNFUSED, keep_barriers, set_barrier
from lazytpu.passes.regions import blocks

_MOVES = (BroadcastInDimOp, ReshapeOp, SliceOp, TransposeOp)


@dataclass(frozen=True)
class KeepComparedPass(ModulePass):
    """Sets barriers behind values that are compared."""

    name = "keep-compared"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        any_compared = False
        for block in blocks(op):
            values = dict.fromkeys(value for inner in block.ops for value in _compared(inner))
            for value in values:
                set_barrier(block, value)
            any_compared |= bool(values)
        if any_compared:
            keep_barriers(op)


def _compared(op: Operation) -> Iterator[SSAValue]:
    """The values that must have the same bits for `op` as for their other users."""
    if isinstance(op, ArgreduceOp):
        value, _ = _source(op.operand)
        if _is_fused(value):
            yield value
    elif isinstance(op, CompareOp) and op.operands[0] is not op.operands[1]:
        sources = [_source(operand) for operand in op.operands]
        if all(isinstance(value.owner, Operation) and not _is_number(value) for value, _ in sources):
            yield from (value for value, shared in sources if shared and _is_fused(value))


def _source(value: SSAValue) -> tuple[SSAValue, bool]:
    """(source, shared): the value before any moves, and whether it or a moved form of it has another user."""
    shared = value.has_more_than_one_use()
    while isinstance(value.owner, _MOVES):
        value = value.owner.operand
        shared = shared or value.has_more_than_one_use()
    return value, shared


def _is_number(value: SSAValue) -> bool:
    return isinstance(value.owner, Operation) and not value.owner.operands


def _is_fused(value: SSAValue) -> bool:
    """Whether a value is floating point and may be recomputed in the fusions of its users."""
    dtype = dtype_of(value)
    return (
        (is_float(dtype) or is_complex(dtype))
        and not isinstance(value.owner, (*UNFUSED, CallOp, Block))
        and bool(value.owner.operands)
    )
