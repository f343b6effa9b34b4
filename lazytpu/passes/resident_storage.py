"""`resident-storage`: parameters and optimizer states that are updated alike become one flat argument and result.

    func.func @main(%w: 4xf32 {lazytpu.donate, lazytpu.successor = 0}, %b: 3xf32 {.. = 1}, %g: 4xf32, %h: 3xf32) {
      ... reads %w and %b ...
      %0 = lazytpu.sub %w, %g
      %1 = lazytpu.sub %b, %h
      func.return %0, %1 : 4xf32, 3xf32
    ->
    func.func @main(.., %p: 7xf32 {lazytpu.donate, lazytpu.successor = 0, lazytpu.parts = [1, 0]}) {
      %b = lazytpu.slice %p starts = [0] limits = [3]
      %w = lazytpu.slice %p starts = [3] limits = [7]
      ... reads %w and %b ...
      %0 = lazytpu.concatenate %h, %g
      %1 = lazytpu.sub %p, %0
      func.return %1 : 7xf32 {lazytpu.parts = [1, 0]}

The parts of a flat argument lie one after the other, row-major, smallest first; `lazytpu.parts` names the arguments (or
results) of the function as it was. Flat results come before all others, flat arguments after all others, and the
arguments that are parts stay, unread. Which updates belong together is in `updates.py`. Numbers that differ by part
(AdamW's bias corrections) are repeated over the parts.

Needs: `lazytpu.donate` and `lazytpu.successor`, not yet paired by `mark-donation`; someone who keeps the arguments
flat between runs, since to concatenate them inside a step costs more than it saves. Guarantees: every result has the
bits that it had, of NaNs perhaps others.

What it saves: AdamW of 50 x f32[768] by the TPU compiler (v6e, estimate of the schedule) is 36 ops and 12.7 us, flat
12 ops and 4.1 us. Gradients join as a sum of padded vectors on a TPU, which is one op; `concatenate` is one for each
operand there, 19 us in all. On a CPU it is the other way round (58 us, padded 920), and each argument and result costs
the host 1.2 us: 263 us, flat 58 (2 cores, jaxlib 0.10.2). In a whole step the TPU compiler fuses each update into the
op that makes its gradient, so this pass is part of no target's pipeline: docs/resident.md has the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, UnitAttr, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass

from lazytpu.ir.builder import Builder
from lazytpu.ir.types import dtype_of, int_array, ints, is_int_array, tensor_type
from lazytpu.passes.dce import erase_dead
from lazytpu.passes.layout.horizontal_fusion import Joiner
from lazytpu.passes.mark_donation import ALIAS, DONATE, SUCCESSOR
from lazytpu.passes.updates import Lane, groups

PARTS = "lazytpu.parts"


@dataclass(frozen=True)
class ResidentStoragePass(ModulePass):
    """Small arguments that are updated alike, kept flat."""

    name = "resident-storage"
    limit: int = 4096
    "The most elements of an argument."
    lanes: int = 8
    "The fewest parameters that are worth a flat argument."
    join: str = "concatenate"
    'How values become parts of one: "concatenate", or "pad" (and add).'

    alone: bool = False
    "Also what nothing but its update reads, for programs that are an optimizer's step and no more."

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.join not in ("concatenate", "pad"):
            raise ValueError(f"join is concatenate or pad; got {self.join!r}")
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and not function.is_declaration and not _paired(function):
                found = groups(function, self.limit, self.lanes, self.alone)
                if found:
                    _Rewrite(function, self.join).run(found)


def _paired(function: FuncOp) -> bool:
    return any(ALIAS in named.data for named in function.arg_attrs or ())


def parts_of(attributes: DictionaryAttr) -> tuple[int, ...]:
    """The arguments or results that a flat one is made of; none of one that is not flat."""
    found = attributes.data.get(PARTS)
    return ints(found) if found is not None and is_int_array(found) else ()


class _Rewrite:
    def __init__(self, function: FuncOp, join: str):
        self.block = function.body.block
        self.function = function
        self.join = join
        returned = self.block.last_op
        assert isinstance(returned, ReturnOp)
        self.returned = returned
        self.arguments = [dict(named.data) for named in function.arg_attrs or ()]
        self.flat: list[tuple[SSAValue, tuple[int, ...]]] = []  # new results, and what they are made of

    def run(self, found: list[list[Lane]]) -> None:
        for lanes in found:
            self._group(lanes)
        self._results()
        self.function.arg_attrs = ArrayAttr(map(DictionaryAttr, self.arguments))
        self.function.update_function_type()
        erase_dead(self.block, {})

    def _group(self, lanes: list[Lane]) -> None:
        """Compute the updates of all lanes at once, before the return, and read their arguments from flat ones."""
        b = Builder(self.block, self.returned)
        joiner = Joiner(b, [lane.shape for lane in lanes], self.join)
        made: list[SSAValue] = []
        width = len(lanes[0].updates)
        flat = [self._argument(lanes, k) for k in range(width)]
        for number, node in enumerate(lanes[0].structure):
            values = [lane.nodes[number] for lane in lanes]
            if node.argument is not None:
                made.append(flat[node.argument])
            elif node.kind is not None:
                made.append(joiner.same(values, [made[operand] for operand in node.operands]))
            else:
                made.append(joiner.repeated(values) if node.scalar else joiner.join(values))
        for k, number in enumerate(lanes[0].results):
            self.flat.append((made[number], tuple([lane.updates[k].result for lane in lanes])))
        self._read(lanes, flat)

    def _argument(self, lanes: list[Lane], k: int) -> SSAValue:
        """A flat argument for the k-th argument of each lane."""
        numbers = [lane.updates[k].argument for lane in lanes]
        dtype = dtype_of(self.block.args[numbers[0]])
        total = sum(lane.elements for lane in lanes)
        made = self.block.insert_arg(tensor_type(dtype, (total,)), len(self.block.args))
        of_first = self.arguments[numbers[0]].get("lazytpu.name")
        name = f"{len(lanes)} like {of_first.data}" if isinstance(of_first, StringAttr) else f"{len(lanes)} parts"
        attributes: dict[str, Attribute] = {"lazytpu.name": StringAttr(name), DONATE: UnitAttr()}
        attributes[SUCCESSOR] = IntegerAttr(len(self.flat) + k, i64)
        attributes[PARTS] = int_array(numbers)
        self.arguments.append(attributes)
        return made

    def _read(self, lanes: list[Lane], flat: Sequence[SSAValue]) -> None:
        """Who reads an argument of a lane from now on reads its part of the flat one."""
        b = Builder(self.block, self.block.first_op)
        start = 0
        for lane in lanes:
            for update, whole in zip(lane.updates, flat, strict=True):
                argument = self.block.args[update.argument]
                if argument.uses:
                    part = b.slice(whole, (start,), (start + lane.elements,))
                    argument.replace_all_uses_with(b.reshape(part, lane.shape))
            start += lane.elements

    def _results(self) -> None:
        """Return the flat results first, then those that are not in them, and count the successors anew."""
        former = list(self.returned.operands)
        gone = {number for _, parts in self.flat for number in parts}
        stay = [i for i in range(len(former)) if i not in gone]
        place = {old: len(self.flat) + new for new, old in enumerate(stay)}
        for named in self.arguments:
            successor = named.get(SUCCESSOR)
            if PARTS in named or not isinstance(successor, IntegerAttr):
                continue
            if successor.value.data in place:
                named[SUCCESSOR] = IntegerAttr(place[successor.value.data], i64)
            else:  # an argument that is part of a flat one
                del named[SUCCESSOR], named[DONATE]
        attributes = [DictionaryAttr({})] * len(former) if self.function.res_attrs is None else self.function.res_attrs
        kept = [dict(named.data) for named in attributes]
        self.function.res_attrs = ArrayAttr(
            [DictionaryAttr({PARTS: int_array(parts)}) for _, parts in self.flat]
            + [DictionaryAttr(kept[i]) for i in stay]
        )
        self.returned.operands = [value for value, _ in self.flat] + [former[i] for i in stay]
