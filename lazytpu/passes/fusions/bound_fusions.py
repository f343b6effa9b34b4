"""`bound-fusions`: limit the number of ops in a fusion of XLA:CPU.

    %1 = lazytpu.add %0, %a                      %1 = lazytpu.add %0, %a
    %2 = lazytpu.multiply %1, %b          ->     %2 = lazytpu.barrier %1        (with limit = 2)
    %3 = lazytpu.add %2, %c                      %3 = lazytpu.multiply %2, %b
                                                 %4 = lazytpu.add %3, %c

XLA:CPU has no such limit: a chain of 3,000 pointwise ops becomes one fusion, and one basic block for LLVM. Compile time
grows with its square (35 s for 3,000 `exp`), the code spills registers (200 multiply-adds of 100,000 elements run 1.7
times as fast in parts of 50), and LLVM's scheduler may never finish: from 1,000 memory accesses in a block on it drops
detail (its option dag-maps-huge-region), and was then seen to use up all memory on CPUs with AVX512, whose adds take
memory operands. 511 adds of numbers in one array are enough.

The size of a fusion is counted as XLA fuses: all ops that compute a value from values that are materialized anyway,
since an op that is cheap or has one user is computed in the fusion of its user. Where that would exceed the limit, the
operand with the most ops is materialized, or its source when it is only a broadcast.

Needs: to run after all passes that rewrite ops. Guarantees: the same bits. XLA:CPU removes barriers before fusion, so
the module disables that pass of XLA; a barrier that remains costs nothing at run time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from lazytpu.ir import binary, unary
from lazytpu.ir.control import YieldOp
from lazytpu.ir.random import RandomBitsOp
from lazytpu.ir.shape import BarrierOp, BroadcastInDimOp
from lazytpu.ir.template import TemplateOp
from lazytpu.ir.types import dtype_of, is_complex
from lazytpu.passes.fusions.barriers import UNFUSED, keep_barriers, set_barrier
from lazytpu.passes.graph import Bits
from lazytpu.passes.regions import blocks

LONG = (
    *(TemplateOp, RandomBitsOp),
    *(binary.NextAfterOp, binary.PolygammaOp, binary.PowOp, binary.ZetaOp),
    *(unary.BesselI1eOp, unary.DigammaOp, unary.ErfInvOp, unary.ErfOp, unary.ErfcOp, unary.LgammaOp),
)
"Ops that expand to tens of ops, as do all functions of complex numbers."
WEIGHT = 16
"The number of ops that each of these counts as."

MANY = 16
"""No barrier is set on an operand with less than this fraction (1/MANY) of the limit: it would not pay."""


@dataclass(frozen=True)
class BoundFusionsPass(ModulePass):
    """Sets barriers where a fusion would have more than `limit` ops."""

    name = "bound-fusions"
    limit: int = 200

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.limit < 1:
            raise ValueError(f"limit is {self.limit}; expected at least 1 op")
        bounded = False
        for block in blocks(op):
            bounded |= _bound(block, self.limit)
        if bounded:
            keep_barriers(op)


def _bound(block: Block, limit: int) -> bool:
    """Set the barriers of a block. Returns whether the block has any barrier now."""
    fused: dict[SSAValue, Bits] = {}  # the ops in the fusion that computes each value with remaining uses
    uses = Counter(operand for op in block.ops for operand in op.operands)
    first_bit = 0
    for op in block.ops:
        operands = tuple(op.operands)
        if not isinstance(op, (*UNFUSED, CallOp, ReturnOp, YieldOp)):
            weight = min(limit, _weight(op))
            while (producers := _union(op, fused)).bit_count() + weight > limit:
                largest = max(op.operands, key=lambda operand: fused.get(operand, 0).bit_count())
                if fused[largest].bit_count() * MANY < limit:
                    break
                source = _source(largest)
                set_barrier(block, source)
                del fused[largest]
                fused.pop(source, None)
            weight_bits = ((1 << weight) - 1) << first_bit
            first_bit += weight
            fused.update((value, producers | weight_bits) for value in op.results if uses[value])
        uses.subtract(operands)
        for operand in operands:
            if not uses[operand]:
                fused.pop(operand, None)
    return any(isinstance(op, BarrierOp) for op in block.ops)


def _union(op: Operation, fused: Mapping[SSAValue, Bits]) -> Bits:
    """The ops that XLA fuses into the operands of this one."""
    ops = 0
    for operand in op.operands:
        ops |= fused.get(operand, 0)
    return ops


def _weight(op: Operation) -> int:
    """Return the number of ops that this op counts as."""
    is_complex_function = isinstance(op, unary.AnalyticUnaryOp | binary.DivOp) and is_complex(dtype_of(op.results[0]))
    return WEIGHT if is_complex_function or isinstance(op, LONG) else 1


def _source(value: SSAValue) -> SSAValue:
    """The source of a chain of broadcasts, as far as it is not materialized already."""
    materialized = (*UNFUSED, CallOp, Block)
    while isinstance(value.owner, BroadcastInDimOp) and not isinstance(value.owner.operand.owner, materialized):
        value = value.owner.operand
    return value
