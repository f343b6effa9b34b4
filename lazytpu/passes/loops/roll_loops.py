"""`roll-loops`: equal stretches of a long program become a loop.

    %1 = lazytpu.tanh %0
    %2 = lazytpu.mul %1, %a            %9 = lazytpu.while %zero, %0, %a carried = 2
    %3 = lazytpu.tanh %2                 while (%i, %x, %a) { %i < 200 }
    %4 = lazytpu.mul %3, %a      ->      do (%i, %x, %a) {
    …                                      %1 = lazytpu.tanh %x
    %400 = lazytpu.mul %399, %a            %2 = lazytpu.mul %1, %a
                                           lazytpu.yield %i + 1, %2
                                         }

A Python loop in one step, over layers, time steps, iterations of a solver or of an inner optimisation, is recorded once
for each iteration, and so is its backward pass. Compiled as it is, such a step takes minutes.

The ops are searched for repetitions as in `cluster-fusion` (clusters/repeats.py), in the order in which they were
recorded and without free ops (clusters/sorter.py). The iterations of a repetition are compared op by op
(alignment.py), and those at the ends that do not fit in with the others are left out. building.py makes the loop, and
whole_stacks.py what others read of it. Then the bodies of the loops are searched in turn.

Options: `platform`, the one whose costs decide (cost.py); `least`, the number of ops that a loop must spare; and
`least-stacked`, how many more it must spare for each value of an iteration that the program has one by one and that
is stacked for the loop, such as a weight of a layer or a state of an optimizer. So a model of some dozen layers stays
as it is, whose parts are better compiled by `cluster-fusion`. When `least` is given, it decides alone, without costs.

Needs: canonical form, without duplicates. Guarantees: the same operations on the same numbers, in the same order.
Results differ in their last bits where XLA would have fused across iterations, or fuses an iteration of a loop in
another way: then it may contract a multiplication and an addition, or add in another order. Collectives are never
rolled. A loop has the attribute `lazytpu.rolled`, which says what was rolled and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass

from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp, DenseConstantOp
from lazytpu.ir.control import WhileOp
from lazytpu.ir.shape import PadOp, SliceOp
from lazytpu.passes.clusters.repeats import Stretch, stretches
from lazytpu.passes.clusters.sorter import VIEWS, Sorter, communicates
from lazytpu.passes.dce import erase_dead
from lazytpu.passes.loops.alignment import Alignment, Misaligned
from lazytpu.passes.loops.building import ROLLED, build
from lazytpu.passes.loops.cost import RATES, Estimate, estimate
from lazytpu.passes.loops.whole_stacks import hand_over

LEAST = 400
"The ops that a loop must spare."
STACKED = 200
"The ops that it must spare in addition for each value of an iteration that is stacked for it."
TRIES = 6
"How often iterations at the ends are left out before a repetition is given up."


@dataclass(frozen=True)
class RollLoopsPass(ModulePass):
    """Rolls equal stretches of ops into loops."""

    name = "roll-loops"
    platform: str = "cpu"
    least: int | None = None
    least_stacked: int | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.platform not in RATES:
            raise ValueError(f"platform is {self.platform!r}; expected one of {', '.join(RATES)}")
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and not function.is_declaration:
                roll(function.body.block, self._worth())

    def notes(self, module: ModuleOp) -> list[str]:
        """What was rolled, and the estimates that decided it."""
        found = [op.attributes.get(ROLLED) for op in module.walk() if isinstance(op, WhileOp)]
        return [note.data for note in found if isinstance(note, StringAttr)]

    def _worth(self) -> Worth:
        least = LEAST if self.least is None else self.least
        stacked = STACKED if self.least_stacked is None else self.least_stacked
        # A number of ops that was asked for decides alone.
        return Worth(self.platform, least, stacked, self.least is None)


@dataclass(frozen=True, slots=True)
class Worth:
    """Decides whether a loop is worth it."""

    platform: str
    least: int
    least_stacked: int
    has_to_pay: bool

    def __call__(self, found: Estimate) -> bool:
        least = self.least + self.least_stacked * found.stacked
        return found.spared >= max(1, least) and (found.pays or not self.has_to_pay)


def roll(block: Block, worth: Worth) -> None:
    """Roll what is worth it in a block, and in the loops that this makes."""
    sorter = _LooseSorter(block)
    found = stretches([sorter.signatures[op] for op in sorter.ops], max(1, worth.least))
    stacks: set[SSAValue] = set()
    for stretch in found:
        stacks.update(_roll(block, sorter, stretch, worth))
    if not stacks and not found:
        return
    hand_over(block, stacks)
    erase_dead(block, {})
    for op in list(block.ops):
        if isinstance(op, WhileOp):
            roll(op.regions[1].block, worth)


class _LooseSorter(Sorter):
    """Numbers ops alike that differ in what may depend on the iteration: places of slices and numbers of constants."""

    def compared(self, op: Operation) -> Mapping[str, Attribute]:
        if isinstance(op, SliceOp):
            return {"strides": op.strides}
        if isinstance(op, PadOp):
            return {"interior": op.interior}
        if isinstance(op, ConstantOp) or (isinstance(op, DenseConstantOp) and op in self.free):
            return {}
        return super().compared(op)


def _roll(block: Block, sorter: Sorter, stretch: Stretch, worth: Worth) -> list[SSAValue]:
    """Roll a stretch if that is worth it. Returns the stacks of results that its loop makes."""
    ops = sorter.ops[stretch.start : stretch.end]
    if any(map(communicates, ops)) or all(isinstance(op, VIEWS) for op in ops[: stretch.period]):
        return []
    iterations = [ops[i : i + stretch.period] for i in range(0, len(ops) - stretch.period + 1, stretch.period)]
    for _ in range(TRIES):
        if (len(iterations) - 1) * stretch.period < max(1, worth.least):
            return []
        moved, dependent = _between(iterations, sorter)
        try:
            alignment = Alignment(iterations, sorter.free, dependent)
        except Misaligned as error:
            if error.fitting is None:
                return []
            first, last = error.fitting
            iterations = iterations[first:last]
            continue
        found = estimate(alignment, stretch.period, worth.platform)
        if not alignment.used or not worth(found):
            return []
        anchor = iterations[0][0]
        for op in moved:
            op.detach()
            block.insert_op_before(op, anchor)
        note = f"rolled {len(iterations)} x {stretch.period} ops into a loop: {found}"
        return build(alignment, Builder(block, anchor), note)
    return []


def _between(iterations: Sequence[Sequence[Operation]], sorter: Sorter) -> tuple[list[Operation], set[Operation]]:
    """The free ops among iterations: those that depend on none of them, and those that do."""
    own = {op for ops in iterations for op in ops}
    independent: list[Operation] = []
    dependent: set[Operation] = set()
    op, last = iterations[0][0], iterations[-1][-1]
    while op is not last:
        if op in sorter.free:
            if any(operand.owner in own or operand.owner in dependent for operand in op.operands):
                dependent.add(op)
            else:
                independent.append(op)
        following = op.next_op
        assert following is not None
        op = following
    return independent, dependent
