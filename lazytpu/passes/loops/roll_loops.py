"""`roll-loops`: roll repeated stretches of a long program into a loop.

    %1 = lazytpu.tanh %0
    %2 = lazytpu.mul %1, %a            %9 = lazytpu.while %zero, %0, %a carried = 2
    %3 = lazytpu.tanh %2                 while (%i, %x, %a) { %i < 200 }
    %4 = lazytpu.mul %3, %a      ->      do (%i, %x, %a) {
    …                                      %1 = lazytpu.tanh %x
    %400 = lazytpu.mul %399, %a            %2 = lazytpu.mul %1, %a
                                           lazytpu.yield %i + 1, %2
                                         }

A Python loop in one step, over layers, time steps, iterations of a solver or of an inner optimisation, is recorded once
for each iteration, and so is its backward pass. Compiled without rolling, such a step takes minutes.

The ops are searched for repetitions as in `cluster-fusion` (clusters/repeats.py), without free ops
(clusters/sorter.py), in the order in which they were recorded; if too many ops remain, also in the order of need
(order.py). The iterations of a repetition are compared op by op (alignment.py). Differing iterations at the ends are
dropped. building.py builds the loop, and whole_stacks.py simplifies the uses of its results. Then the bodies of the
loops are searched in turn.

Options: `platform`, whose costs decide (cost.py); `least`, the number of ops that the loops must spare together, and
each of them a quarter of it; and `least-stacked`, how many additional ops a loop must spare for each value of an
iteration that is stacked for it, such as a weight of a layer or a state of an optimizer. So a model of some dozen
layers, which `cluster-fusion` compiles better, is left unchanged. If `least` is given, it decides alone, without costs.

Needs: canonical form, without duplicates. Guarantees: the same operations on the same numbers, in the same order.
Results differ in their last bits where XLA would have fused across iterations, or fuses an iteration of a loop
differently: then it may contract a multiplication and an addition, or add in another order. Collectives are never
rolled. A loop has the attribute `lazytpu.rolled`, which describes the rolled ops and the estimate.
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
from lazytpu.passes.loops.order import by_need, reorder
from lazytpu.passes.loops.whole_stacks import hand_over

LEAST = 400
"""The number of ops that the loops of a program must spare together."""
PART = 4
"""The fraction (1/PART) of that number that each loop must spare."""
STACKED = 200
"""The additional ops that a loop must spare for each value of an iteration that is stacked for it."""
MANY = 0.25
"""The fraction (1/MANY) of a program that must remain unrolled before another order of its ops is tried."""
TRIES = 6
"""The number of times that iterations at the ends are dropped before a repetition is given up."""


@dataclass(frozen=True)
class RollLoopsPass(ModulePass):
    """Rolls repeated stretches of ops into loops."""

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
        """Return descriptions of the rolled loops, with the estimates that decided."""
        rolled = [op.attributes.get(ROLLED) for op in module.walk() if isinstance(op, WhileOp)]
        return [note.data for note in rolled if isinstance(note, StringAttr)]

    def _worth(self) -> Worth:
        least = LEAST if self.least is None else self.least
        stacked = STACKED if self.least_stacked is None else self.least_stacked
        # An explicit number of ops decides alone.
        return Worth(self.platform, least, stacked, self.least is None)


@dataclass(frozen=True, slots=True)
class Worth:
    """Decides whether a loop pays."""

    platform: str
    least: int
    least_stacked: int
    has_to_pay: bool

    def __call__(self, loop: Estimate) -> bool:
        return loop.spared >= self.each + self.least_stacked * loop.stacked and (loop.pays or not self.has_to_pay)

    @property
    def each(self) -> int:
        """The number of ops that each loop must spare, if nothing is stacked for it."""
        return max(2, self.least // PART)


def roll(block: Block, worth: Worth) -> None:
    """Roll the repetitions that pay in a block, and in the bodies of the new loops."""
    stacks = _Roller(block, worth).roll()
    if stacks is None:
        return
    hand_over(block, stacks)
    erase_dead(block, {})
    for op in list(block.ops):
        if isinstance(op, WhileOp) and ROLLED in op.attributes:
            roll(op.regions[1].block, worth)


class _LooseSorter(Sorter):
    """Assigns equal numbers to ops that differ only in properties that may depend on the iteration: starts of slices,
    and numbers of constants."""

    def compared(self, op: Operation) -> Mapping[str, Attribute]:
        if isinstance(op, SliceOp):
            return {"strides": op.strides}
        if isinstance(op, PadOp):
            return {"interior": op.interior}
        if isinstance(op, ConstantOp) or (isinstance(op, DenseConstantOp) and op in self.free):
            return {}
        return super().compared(op)


class _Roller:
    """Rolls the stretches of a block."""

    def __init__(self, block: Block, worth: Worth):
        self.block, self.worth = block, worth
        self.sorter = _LooseSorter(block)
        self.order = list(block.ops)[:-1]
        self.ops, self.found = self.sorter.ops, self._stretches(self.sorter.ops)
        self.is_moved = False
        """Whether the ops have to be reordered."""
        unrolled = len(self.ops) - _spared(self.found)
        if unrolled >= max(worth.least, MANY * len(self.ops), 1) and not any(map(communicates, self.order)):
            order = by_need(block)
            ops = [op for op in order if op not in self.sorter.free]
            stretches_by_need = self._stretches(ops)
            if unrolled > len(ops) - _spared(stretches_by_need):
                self.order, self.ops, self.found, self.is_moved = order, ops, stretches_by_need, True
        self.place = {op: i for i, op in enumerate(self.order)}

    def _stretches(self, ops: Sequence[Operation]) -> list[Stretch]:
        repeated = stretches([self.sorter.signatures[op] for op in ops], self.worth.each)
        return repeated if _spared(repeated) >= self.worth.least else []

    def roll(self) -> set[SSAValue] | None:
        """Roll all stretches that pay. Return the stacks of results of the loops; None without any loop."""
        stacks_of_loops = [stacks for stretch in self.found if (stacks := self._roll(stretch)) is not None]
        return {stack for stacks in stacks_of_loops for stack in stacks} if stacks_of_loops else None

    def _roll(self, stretch: Stretch) -> list[SSAValue] | None:
        ops, period = self.ops[stretch.start : stretch.end], stretch.period
        if any(map(communicates, ops)) or all(isinstance(op, VIEWS) for op in ops[:period]):
            return None
        iterations = [ops[i : i + period] for i in range(0, len(ops) - period + 1, period)]
        for _ in range(TRIES):
            if (len(iterations) - 1) * period < self.worth.each:
                return None
            moved, dependent = self._between(iterations)
            try:
                alignment = Alignment(iterations, self.sorter.free, dependent)
            except Misaligned as error:
                if error.fitting is None:
                    return None
                first, last = error.fitting
                iterations = iterations[first:last]
                continue
            costs = estimate(alignment, period, self.worth.platform)
            if not alignment.used or not self.worth(costs):
                return None
            return self._build(alignment, moved, f"rolled {len(iterations)} x {period} ops into a loop: {costs}")
        return None

    def _build(self, alignment: Alignment, moved: Sequence[Operation], note: str) -> list[SSAValue]:
        if self.is_moved:
            reorder(self.block, self.order)
            self.is_moved = False
        anchor = alignment.iterations[0][0]
        for op in moved:
            op.detach()
            self.block.insert_op_before(op, anchor)
        return build(alignment, Builder(self.block, anchor), note)

    def _between(self, iterations: Sequence[Sequence[Operation]]) -> tuple[list[Operation], set[Operation]]:
        """Return the free ops among iterations: (the ones that depend on no iteration, the ones that do)."""
        loop_ops = {op for ops in iterations for op in ops}
        independent: list[Operation] = []
        dependent: set[Operation] = set()
        for op in self.order[self.place[iterations[0][0]] : self.place[iterations[-1][-1]]]:
            if op in self.sorter.free:
                if any(operand.owner in loop_ops or operand.owner in dependent for operand in op.operands):
                    dependent.add(op)
                else:
                    independent.append(op)
        return independent, dependent


def _spared(repetitions: Sequence[Stretch]) -> int:
    return sum(stretch.spared for stretch in repetitions)
