"""`bound-fusions`: no fusion of the CPU's compiler takes in more than so many ops.

    %1 = lazytpu.add %0, %a                      %1 = lazytpu.add %0, %a
    %2 = lazytpu.multiply %1, %b          ->     %2 = lazytpu.barrier %1        (with limit = 2)
    %3 = lazytpu.add %2, %c                      %3 = lazytpu.multiply %2, %b
                                                 %4 = lazytpu.add %3, %c

XLA:CPU sets no limit: a chain of 3,000 pointwise ops is one fusion, and one basic block to LLVM. Its time grows with
the square (35 s for 3,000 `exp`), its code spills what it has no registers for (200 multiply-adds of 100,000 elements
run 1.7 times as fast in parts of 50), and LLVM's scheduler may never end: from a block with 1,000 accesses to memory
on it drops detail (its option dag-maps-huge-region), and was then seen to take all the memory there is, for CPUs with
AVX512, whose adds take operands from memory. 511 adds of numbers that lie in one array are enough.

How large a fusion may become is counted as XLA fuses: all ops that compute a value, from values that are there anyhow,
since whatever has one user, or is cheap, is computed in the fusion of its user. Where that would be more than the
limit, the operand that takes most is made in full; of one that only repeats another, the other is.

Needs: to run after all passes that rewrite ops. Guarantees: the same bits. XLA:CPU takes barriers out before it fuses,
so the module asks for that pass of XLA to be left out; a barrier that stays costs nothing at run time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from lazytpu.ir import binary, unary
from lazytpu.ir.module import add_options
from lazytpu.ir.random import RandomBitsOp
from lazytpu.ir.shape import BarrierOp, BroadcastInDimOp
from lazytpu.ir.template import TemplateOp
from lazytpu.ir.types import dtype_of, is_complex
from lazytpu.passes.fusions.barriers import ALONE, KEEP_BARRIERS, set_barrier
from lazytpu.passes.graph import Bits

LONG = (
    *(TemplateOp, RandomBitsOp),
    *(binary.NextAfterOp, binary.PolygammaOp, binary.PowOp, binary.ZetaOp),
    *(unary.BesselI1eOp, unary.DigammaOp, unary.ErfInvOp, unary.ErfOp, unary.ErfcOp, unary.LgammaOp),
)
"Ops that become tens of ops; so do all functions of complex numbers."
WEIGHT = 16
"As how many each of these counts."

MANY = 16
"An op of so many operands that none takes this part of the limit is left as it is: none would be worth a barrier."


@dataclass(frozen=True)
class BoundFusionsPass(ModulePass):
    """Barriers in what would become a fusion of more than `limit` ops."""

    name = "bound-fusions"
    limit: int = 200

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.limit < 1:
            raise ValueError(f"limit is {self.limit}; expected at least 1 op")
        bounded = False
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and not function.is_declaration:
                bounded |= _bound(function.body.block, self.limit)
        if bounded:
            add_options(op, KEEP_BARRIERS)


def _bound(block: Block, limit: int) -> bool:
    """Set the barriers of a block; whether there are any now."""
    fused: dict[SSAValue, Bits] = {}  # of each value that is still to be used: the ops in a fusion that computes it
    uses = Counter(operand for op in block.ops for operand in op.operands)
    place = 0
    for op in block.ops:
        operands = tuple(op.operands)
        if not isinstance(op, (*ALONE, CallOp, ReturnOp)):
            weight = min(limit, _weight(op))
            while (together := _union(op, fused)).bit_count() + weight > limit:
                largest = max(op.operands, key=lambda operand: fused.get(operand, 0).bit_count())
                if fused[largest].bit_count() * MANY < limit:
                    break
                source = _source(largest)
                set_barrier(block, source)
                del fused[largest]
                fused.pop(source, None)
            mine = ((1 << weight) - 1) << place
            place += weight
            fused.update((value, together | mine) for value in op.results if uses[value])
        uses.subtract(operands)
        for operand in operands:
            if not uses[operand]:
                fused.pop(operand, None)
    return any(isinstance(op, BarrierOp) for op in block.ops)


def _union(op: Operation, fused: Mapping[SSAValue, Bits]) -> Bits:
    """The ops that XLA fuses into this one."""
    found = 0
    for operand in op.operands:
        found |= fused.get(operand, 0)
    return found


def _weight(op: Operation) -> int:
    """As how many ops this one counts."""
    of_complex = isinstance(op, unary.AnalyticUnaryOp | binary.DivOp) and is_complex(dtype_of(op.results[0]))
    return WEIGHT if of_complex or isinstance(op, LONG) else 1


def _source(value: SSAValue) -> SSAValue:
    """What a value repeats, if something computes that; else the value."""
    there = (*ALONE, CallOp, Block)
    while isinstance(value.owner, BroadcastInDimOp) and not isinstance(value.owner.operand.owner, there):
        value = value.owner.operand
    return value
