"""Branches and loops: their regions are walked like blocks, with the pack of sizes as an additional operand.

Carried values have the same padding before and after each iteration. If a loop starts from a constant, which is
compatible with any arrangement, its arrangement is the yielded one. A walk of a copy of the body determines it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazytpu.ir import control as ops
from lazytpu.passes.padding.dims import Refused, merged_all
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Walk, rule

ATTEMPTS = 4  # walks of the body before the loop is refused


@rule(ops.IfOp)
def if_(w: Walk, op: ops.IfOp) -> Sequence[Padded] | None:
    """Walk both branches and merge the padding of their results."""
    entering = [w.of(x) for x in op.entering]
    then, orelse = (w.inside(region.block, entering) for region in op.regions)
    w.enter_pack(op)
    return [_either(x, y) for x, y in zip(then, orelse, strict=True)]


def _either(x: Padded, y: Padded) -> Padded:
    """Return the padding of a value that is `x` or `y`."""
    return Padded(merged_all([x.dims, y.dims]), x.fill if repr(x.fill) == repr(y.fill) else None)


@rule(ops.WhileOp)
def while_(w: Walk, op: ops.WhileOp) -> Sequence[Padded] | None:
    """Walk copies of the body until the padding of the carried values is stable, then walk the loop itself."""
    carried = [Padded(w.dims(x)) for x in op.entering[: op.count]]
    invariants = [w.of(x) for x in op.entering[op.count :]]
    masks, moves = w.shared.masks, w.shared.moves
    for _ in range(ATTEMPTS):
        copy = op.clone()
        yielded = w.inside(copy.regions[1].block, [*carried, *invariants])
        ends = [[dim.settled for dim in y.dims] for y in yielded]
        copy.erase()  # else it would remain a user of the loop's operands
        after = [Padded(merged_all([x.dims, end])) for x, end in zip(carried, ends, strict=True)]
        if after == carried:
            break
        carried = after
    else:
        raise Refused("the padding of what a loop carries does not settle")
    w.shared.masks, w.shared.moves = masks, moves  # forget the ops counted in the erased copies
    for region in op.regions:
        w.inside(region.block, [*carried, *invariants])
    w.enter_pack(op)
    return carried
