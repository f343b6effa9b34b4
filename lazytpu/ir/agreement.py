"""Whether all devices of a group have the same value: what a branch or loop with a collective in it has to branch on.

A collective waits for every device of its group. In a branch that one of them does not take, or an iteration that it
does not run, the others wait forever, or meet another collective of it and exchange the wrong data (R8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.utils.exceptions import VerifyException

from lazytpu.ir.base import TensorOp
from lazytpu.ir.control import IfOp, RegionOp, WhileOp

Groups = Sequence[Sequence[int]]


class CommunicatingOp(TensorOp):
    """An op in which all devices of a group take part."""

    SHARED: ClassVar[bool] = False
    "Whether all devices of a group get the same results."

    @property
    def members(self) -> Groups:
        """The devices of each group that wait for each other."""
        raise NotImplementedError

    def verify_(self) -> None:
        super().verify_()
        try:
            check_conditions(self, self.members)
        except ValueError as error:
            raise VerifyException(f"{self.name}: {error}") from None


def check_conditions(op: Operation, groups: Groups) -> None:
    """Raises ValueError unless the devices of each group agree on every branch and loop around an op."""
    around = op.parent_op()
    while groups and isinstance(around, RegionOp):
        what = "loop" if isinstance(around, WhileOp) else "branch"
        condition = around.yielded(0)[0] if isinstance(around, WhileOp) else around.operands[0]
        if not agree(condition, groups):
            raise ValueError(
                f"this collective is in a {what} whose condition may differ between the devices of its group: some "
                f"would wait in it for those that are not there. Compute the condition from constants and from results "
                f"of all_reduce or all_gather over these devices, or move the collective out of the {what}"
            )
        around = around.parent_op()


def agree(value: SSAValue, groups: Groups) -> bool:
    """Whether the devices of each group have the same value: it depends on constants, and on collectives whose result
    all of them get, but on no argument of the function."""
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        sources = _sources(current, groups)
        if sources is None:
            return False
        pending += [source for source in sources if source not in seen]
        seen.update(sources)
    return True


def _sources(value: SSAValue, groups: Groups) -> Sequence[SSAValue] | None:
    """The values that make this one the same on all devices if they are; None for one that may differ."""
    if isinstance(value, BlockArgument):
        around = value.block.parent_op()
        if isinstance(around, FuncOp) and around.sym_visibility == StringAttr("private"):
            return ()  # a part of a function, in which this was checked
        if not isinstance(around, RegionOp):
            return None  # each device has arguments of its own
        first = around.entering[value.index]
        carried = isinstance(around, WhileOp) and value.index < around.count
        return (first, around.yielded(1)[value.index]) if carried else (first,)
    assert isinstance(value, OpResult)
    op, index = value.op, value.index
    if isinstance(op, CommunicatingOp):
        return () if op.SHARED and _within(groups, op.members) else None
    if isinstance(op, IfOp):
        return op.operands[0], op.yielded(0)[index], op.yielded(1)[index]
    if isinstance(op, WhileOp):
        return op.yielded(0)[0], op.operands[index], op.yielded(1)[index]
    return op.operands


def _within(groups: Groups, others: Groups) -> bool:
    """Whether the devices of each group are in one of the others."""
    place = {device: i for i, other in enumerate(others) for device in other}
    return all(len({place.get(device, -1) for device in group}) == 1 for group in groups)
