"""Checks that every value is defined before it is used, which xDSL's verifier does not.

An op may use

- the arguments of its block and the results of earlier ops in it,
- values of the blocks that dominate its block, and
- in a region of an op that is not isolated from above (functions are isolated), every value that this op may use.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl.dominance import DominanceInfo
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.exceptions import VerifyException


@dataclass(frozen=True)
class Misplaced:
    """A use of a value that is not visible there: operand `index` of `op`."""

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
            return f"{start} is a result of {owner.name}, which is not in a block: it was erased, or never inserted"
        if owner.parent is self.op.parent:
            return f"{start} is a result of {owner.name}, which comes after it"
        return f"{start} is a result of {owner.name}, which is in another function, region or block"


def misplaced(module: Operation) -> Misplaced | None:
    """Return the first use inside `module` of a value before its definition or outside its scope; None if there is
    none. Takes 1 us per op."""
    for region in module.regions:
        use = _in_region(region, set())
        if use is not None:
            return use
    return None


def verify_order(module: Operation) -> None:
    """Raise VerifyException for the use that `misplaced` returns."""
    use = misplaced(module)
    if use is not None:
        raise VerifyException(str(use))


def _in_region(region: Region, outer: set[int]) -> Misplaced | None:
    """Return the first misplaced use in a region. `outer` has the ids of the values that it may use; it is extended."""
    blocks = list(region.blocks)
    if len(blocks) == 1:
        return _in_block(blocks[0], outer)
    dominance, defined = DominanceInfo(region), {block: _defined(block) for block in blocks}
    for block in blocks:
        before = (defined[dominator] for dominator in blocks if dominance.strictly_dominates(dominator, block))
        use = _in_block(block, outer.union(*before))
        if use is not None:
            return use
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
                use = _in_region(region, set() if isolated else set(visible))
                if use is not None:
                    return use
        for result in op.results:
            visible.add(id(result))
    return None


def _defined(block: Block) -> set[int]:
    values: list[SSAValue] = [*block.args, *(result for op in block.ops for result in op.results)]
    return set(map(id, values))
