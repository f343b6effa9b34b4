"""An order of the ops of a block that makes equal iterations contiguous.

Ops are recorded as Python calls them, and a backward pass runs as autograd schedules it. An op that is ready early,
such as the gradient of a loss in each iteration, has another position in each iteration. In the order of need, an op
comes directly before the first op that needs it, so the order depends on the data flow alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, Operation


def by_need(block: Block) -> list[Operation]:
    """Return the ops of a block, without the terminator, each after its operands and as late as possible: a depth-first
    walk from the results. Ops that no result needs come last."""
    terminator = block.last_op
    assert terminator is not None
    order: dict[Operation, None] = {}
    entered: set[Operation] = set()
    for root in (terminator, *block.ops):
        pending = [root]
        while pending:
            op = pending[-1]
            if op in entered:
                pending.pop()
                order.setdefault(op)
                continue
            entered.add(op)
            owners = [operand.owner for operand in reversed(op.operands)]
            pending += [owner for owner in owners if isinstance(owner, Operation) and owner not in entered]
    del order[terminator]
    return list(order)


def reorder(block: Block, order: Sequence[Operation]) -> None:
    """Put the ops of a block, without the terminator, into this order."""
    terminator = block.last_op
    assert terminator is not None
    for op in order:
        op.detach()
        block.insert_op_before(op, terminator)
