"""Branches and loops: regions are walked as blocks are; the pack of sizes enters them as one more operand.

Carried values are padded alike before and after each iteration. Where a loop starts from a constant, which fits any
arrangement, the arrangement is that of what the body yields: it is found by walking a copy of the body.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazytpu.ir import control as ops
from lazytpu.ir.base import TensorOp
from lazytpu.passes.padding.dims import Refused, merged_all
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Rule, Walk

ATTEMPTS = 4


def if_(w: Walk, op: TensorOp) -> Sequence[Padded] | None:
    assert isinstance(op, ops.IfOp)
    entering = [w.of(x) for x in op.entering]
    then, orelse = (w.inside(region.block, entering) for region in op.regions)
    w.enter_pack(op)
    return [_either(x, y) for x, y in zip(then, orelse, strict=True)]


def _either(x: Padded, y: Padded) -> Padded:
    return Padded(merged_all([x.dims, y.dims]), x.fill if repr(x.fill) == repr(y.fill) else None)


def while_(w: Walk, op: TensorOp) -> Sequence[Padded] | None:
    assert isinstance(op, ops.WhileOp)
    carried = [Padded(w.dims(x)) for x in op.entering[: op.count]]
    invariants = [w.of(x) for x in op.entering[op.count :]]
    masks, moves = w.shared.masks, w.shared.moves
    for _ in range(ATTEMPTS):
        copy = op.clone()
        yielded = w.inside(copy.regions[1].block, [*carried, *invariants])
        ends = [[dim.settled for dim in y.dims] for y in yielded]
        copy.erase()  # it is a user of what enters the loop, and other passes would meet it there
        after = [Padded(merged_all([x.dims, end])) for x, end in zip(carried, ends, strict=True)]
        if after == carried:
            break
        carried = after
    else:
        raise Refused("the padding of what a loop carries does not settle")
    w.shared.masks, w.shared.moves = masks, moves  # those of the copies are gone
    for region in op.regions:
        w.inside(region.block, [*carried, *invariants])
    w.enter_pack(op)
    return carried


RULES: dict[type[TensorOp], Rule] = {ops.IfOp: if_, ops.WhileOp: while_}
