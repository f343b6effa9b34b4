"""Agreement of devices: whether all devices of a group have the same value. A branch or loop around a collective needs
a condition on which they agree.

A collective waits for every device of its group. If one of them does not take the branch, or ends the loop earlier, the
others wait forever, or meet another of its collectives and exchange the wrong data (R8).
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
    """An op in which all devices of a group participate."""

    LOCAL: ClassVar[bool] = False
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
    """Raise ValueError unless the devices of each group agree on every branch and loop around an op."""
    parent = op.parent_op()
    while groups and isinstance(parent, RegionOp):
        kind = "loop" if isinstance(parent, WhileOp) else "branch"
        condition = parent.yielded(0)[0] if isinstance(parent, WhileOp) else parent.operands[0]
        if not agree(condition, groups):
            raise ValueError(
                f"this collective is in a {kind} whose condition may differ between the devices of its group: some "
                f"would wait in it for those that are not there. Compute the condition from constants and from results "
                f"of all_reduce or all_gather over these devices, or move the collective out of the {kind}"
            )
        parent = parent.parent_op()


def agree(value: SSAValue, groups: Groups) -> bool:
    """Whether the devices of each group have the same value. It may depend on constants and on collectives with the
    same result on all of them, but on no argument of the function."""
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
    """Return the values on which all devices must agree for them to agree on this one; None if they may differ."""
    if isinstance(value, BlockArgument):
        parent = value.block.parent_op()
        if isinstance(parent, FuncOp) and parent.sym_visibility == StringAttr("private"):
            return ()  # a function outlined from another one, in which this was checked
        if not isinstance(parent, RegionOp):
            return None  # each device has its own arguments
        first = parent.entering[value.index]
        carried = isinstance(parent, WhileOp) and value.index < parent.count
        return (first, parent.yielded(1)[value.index]) if carried else (first,)
    assert isinstance(value, OpResult)
    op, index = value.op, value.index
    if isinstance(op, CommunicatingOp):
        return () if op.SHARED and _within(groups, op.members) else None
    if isinstance(op, IfOp):
        return op.operands[0], op.yielded(0)[index], op.yielded(1)[index]
    if isinstance(op, WhileOp):
        return op.yielded(0)[0], op.operands[index], op.yielded(1)[index]
    return op.operands


def _within(groups: Groups, supersets: Groups) -> bool:
    """Whether each group is a subset of one of the groups `supersets`."""
    place = {device: i for i, superset in enumerate(supersets) for device in superset}
    return all(len({place.get(device, -1) for device in group}) == 1 for group in groups)
