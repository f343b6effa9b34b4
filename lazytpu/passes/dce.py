"""`dce`: erase ops whose results nobody uses, and unused results and operands of branches and loops.

    func.func @main(%x) {              func.func @main(%x) {
      %0 = lazytpu.exp %x        ->      %0 = lazytpu.exp %x
      %1 = lazytpu.log %0                func.return %0
      func.return %0                   }
    }

A branch loses unused results, and a loop the values that it carries only for themselves; both lose the operands that
their regions do not read.

Needs: nothing. Guarantees: every remaining pure op has a used result; function arguments, results, and ops with side
effects stay.

One reverse walk of each block suffices: blocks of this dialect are in dataflow order, so all users of an op come after
it. It takes 0.9 us per op, against 7 us for xDSL's iterated liveness (tools/time_passes.py, 5,000 ops).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.traits import Pure

from lazytpu.ir.control import RegionOp, WhileOp
from lazytpu.passes.regions import live_carried, trim, unused, without


@dataclass(frozen=True)
class DcePass(ModulePass):
    """Dead code elimination."""

    name = "dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pure: dict[type[Operation], bool] = {}
        for region in op.regions:
            for block in region.blocks:
                erase_dead(block, pure)


def erase_dead(block: Block, pure: dict[type[Operation], bool]) -> None:
    """Erase the dead ops of a block and of its nested regions; `pure` caches whether a class of ops is pure."""
    op = block.last_op
    while op is not None:
        previous = op.prev_op
        kind = type(op)
        if kind not in pure:
            pure[kind] = kind.has_trait(Pure)
        if pure[kind] and all(result.first_use is None for result in op.results):
            block.erase_op(op)
        elif isinstance(op, RegionOp):
            _erase_dead_parts(op, pure)
        else:
            for region in op.regions:
                for inner in region.blocks:
                    erase_dead(inner, pure)
        op = previous


def _erase_dead_parts(op: RegionOp, pure: dict[type[Operation], bool]) -> None:
    """Erase the dead ops in the regions of an op, its dead results, and the operands that are then not read."""
    if isinstance(op, WhileOp):
        erase_dead(op.regions[0].block, pure)
        live = live_carried(op)
    else:
        live = {i for i, result in enumerate(op.results) if result.first_use is not None}
    dead = [i for i in range(len(op.results)) if i not in live]
    trim(op, dead)
    for region in op.regions:
        erase_dead(region.block, pure)
    entering = unused(op)
    if dead or entering:
        without(op, PatternRewriter(op), dict.fromkeys(dead), entering)
