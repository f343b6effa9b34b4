"""Every value is made before it is used: what xDSL's verifier does not look at.

An op may use results of ops that come before it in its block, arguments of the block, and, in a region of an op that is
not isolated (a function is), what that op may use. In a region of several blocks it may also use what the blocks make
that are passed through on every way to its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl.dominance import DominanceInfo
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.exceptions import VerifyException


@dataclass(frozen=True)
class Misplaced:
    """An op that uses a value which is not there yet: its operand of this number."""

    op: Operation
    index: int

    def __str__(self) -> str:
        value = self.op.operands[self.index]
        owner, start = value.owner, f"operand {self.index} of {self.op.name}"
        if owner is self.op:
            return f"{start} is its own result"
        if isinstance(owner, Block):
            return f"{start} is an argument of another function or region"
        if owner.parent is None:
            return f"{start} is a result of {owner.name}, which is in no block: it was erased, or never inserted"
        if owner.parent is self.op.parent:
            return f"{start} is a result of {owner.name}, which comes after it"
        return f"{start} is a result of {owner.name}, which is in another function, region or block"


def misplaced(module: Operation) -> Misplaced | None:
    """The first op inside `module` that uses a value before it is made, or one that it cannot see. 1 us an op."""
    for region in module.regions:
        found = _in_region(region, set())
        if found is not None:
            return found
    return None


def verify_order(module: Operation) -> None:
    """Raises VerifyException for the op that `misplaced` finds."""
    found = misplaced(module)
    if found is not None:
        raise VerifyException(str(found))


def _in_region(region: Region, outer: set[int]) -> Misplaced | None:
    """`outer` are the values around the region, by identity, that it may use; they become more."""
    blocks = list(region.blocks)
    if len(blocks) == 1:
        return _in_block(blocks[0], outer)
    dominance, made = DominanceInfo(region), {block: _made(block) for block in blocks}
    for block in blocks:
        before = (made[other] for other in blocks if dominance.strictly_dominates(other, block))
        found = _in_block(block, outer.union(*before))
        if found is not None:
            return found
    return None


def _in_block(block: Block, visible: set[int]) -> Misplaced | None:
    visible.update(map(id, block.args))
    for op in block.ops:
        for operand in op.operands:
            if id(operand) not in visible:
                return Misplaced(op, next(i for i, value in enumerate(op.operands) if value is operand))
        if op.regions:
            isolated = op.has_trait(IsolatedFromAbove)
            for region in op.regions:
                found = _in_region(region, set() if isolated else set(visible))
                if found is not None:
                    return found
        for result in op.results:
            visible.add(id(result))
    return None


def _made(block: Block) -> set[int]:
    made: list[SSAValue] = [*block.args, *(result for op in block.ops for result in op.results)]
    return set(map(id, made))
