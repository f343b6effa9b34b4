"""Finds the arguments that a function updates in the same way: parameters and optimizer states, parameter by parameter.

An update is a donated argument and the result that replaces it, when an elementwise chain leads from one to the other.
Updates that read each other's arguments (a parameter and its moments) are one *lane*; lanes of the same structure
are a *group*. In a group everything but shapes agrees, so that one chain of longer vectors computes all its lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from lazytpu.ir.base import TensorOp
from lazytpu.ir.types import Shape, dtype_of, numel, shape_of
from lazytpu.passes.mark_donation import DONATE, SUCCESSOR
from lazytpu.passes.patterns.broadcasts import ELEMENTWISE

WIDEST = 8
"The most arguments of one lane: AdamW has 3, with AMSGrad and an average of the weights 5."

Arguments = frozenset[BlockArgument]


@dataclass(frozen=True)
class Update:
    """The argument `argument` (a number) is replaced by the result `result`; `reads` are the arguments in its chain."""

    argument: int
    result: int
    reads: Arguments


@dataclass(frozen=True)
class Node:
    """What a value of a lane has in common with its counterparts in the other lanes of the group: it is an argument
    (of the `argument`-th update), or computed by an op `kind` of earlier nodes, or a leaf, which is none of these."""

    dtype: str
    argument: int | None = None
    kind: type[TensorOp] | None = None
    properties: tuple[tuple[str, Attribute], ...] = ()
    operands: tuple[int, ...] = ()
    scalar: bool = False
    """Whether it is 0-d; all other nodes have the shape of the lane."""


@dataclass(frozen=True)
class Lane:
    """Updates that belong together, in the order in which `structure` numbers their arguments.

    `nodes` are the values of the chains, each after those it is computed from, `structure` what they are; `results`
    are the nodes that replace the arguments.
    """

    updates: tuple[Update, ...]
    shape: Shape
    nodes: tuple[SSAValue, ...]
    structure: tuple[Node, ...]
    results: tuple[int, ...]

    @property
    def elements(self) -> int:
        return numel(self.shape)


def groups(function: FuncOp, limit: int, least: int, alone: bool = False) -> list[list[Lane]]:
    """The groups of at least `least` lanes whose arguments have at most `limit` elements each, smallest lanes first and
    else in order of arguments. Without `alone` only lanes that the function also reads outside their chains: what an
    update alone reads is read by another program, which would have to take it apart."""
    block, returned = function.body.block, function.body.block.last_op
    if function.arg_attrs is None or not isinstance(returned, ReturnOp):
        return []
    candidates = _candidates(block, [named.data for named in function.arg_attrs], returned, limit)
    if len(candidates) < least:
        return []
    reads = _reads(block, frozenset(block.args[i] for i in candidates))
    updates: list[Update] = []
    for argument, result in candidates.items():
        read = reads.get(returned.operands[result])
        if read:
            updates.append(Update(argument, result, read))
    found: dict[object, list[Lane]] = {}
    for members in _connected(block, updates):
        lane = _Walk(block, returned, reads, members).lane()
        if lane is not None and (alone or _read_elsewhere(block, lane)):
            found.setdefault((lane.structure, lane.results), []).append(lane)
    return [sorted(lanes, key=lambda lane: lane.elements) for lanes in found.values() if len(lanes) >= least]


def _candidates(
    block: Block, attributes: Sequence[Mapping[str, Attribute]], returned: ReturnOp, limit: int
) -> dict[int, int]:
    """Small donated arguments, each with the computed result of its type that replaces it."""
    found: dict[int, int] = {}
    for i, named in enumerate(attributes):
        successor = named.get(SUCCESSOR)
        if DONATE not in named or not isinstance(successor, IntegerAttr):
            continue
        argument, value = block.args[i], returned.operands[successor.value.data]
        shape = shape_of(argument)
        if shape and 0 < numel(shape) <= limit and value.type == argument.type and isinstance(value.owner, Operation):
            found[i] = successor.value.data
    return found


def _reads(block: Block, arguments: Arguments) -> dict[SSAValue, Arguments]:
    """Of each value, the arguments that an elementwise chain of its own shape leads to; none where they are many."""
    reads: dict[SSAValue, Arguments] = {argument: frozenset((argument,)) for argument in arguments}
    nothing: Arguments = frozenset()
    for op in block.ops:
        if isinstance(op, ELEMENTWISE):
            found = nothing
            for operand in op.operands:
                more = reads.get(operand, nothing)
                if more and shape_of(operand) == shape_of(op.results[0]):
                    found |= more
            if found and len(found) <= WIDEST:
                reads[op.results[0]] = found
    return reads


def _connected(block: Block, updates: Sequence[Update]) -> Iterable[list[Update]]:
    """Updates by lane: two that read a common argument are of one."""
    by_argument = {block.args[update.argument]: update for update in updates}
    lane: dict[Update, list[Update]] = {update: [update] for update in updates}
    for update in updates:
        for argument in update.reads:
            other = by_argument.get(argument)
            if other is not None and lane[other] is not lane[update]:
                merged = lane[update]
                merged += lane[other]
                for moved in lane[other]:
                    lane[moved] = merged
    return {id(members): members for members in lane.values()}.values()


def _read_elsewhere(block: Block, lane: Lane) -> bool:
    chain = {value.owner for value, node in zip(lane.nodes, lane.structure, strict=True) if node.kind is not None}
    arguments = (block.args[update.argument] for update in lane.updates)
    return any(use.operation not in chain for argument in arguments for use in argument.uses)


class _Walk:
    """Numbers the values of one lane, from its results down: the update that reads most arguments first."""

    def __init__(self, block: Block, returned: ReturnOp, reads: Mapping[SSAValue, Arguments], members: list[Update]):
        self.block = block
        self.returned = returned
        self.reads = reads
        self.members = sorted(members, key=lambda update: (-len(update.reads), update.argument))
        self.own = {block.args[update.argument]: update for update in members}
        self.order: list[Update] = []  # as their arguments are met
        self.numbers: dict[SSAValue, int] = {}
        self.structure: list[Node] = []

    def lane(self) -> Lane | None:
        """The lane, or None when its arguments have several shapes, or its chains read arguments that stay."""
        shapes = {shape_of(argument) for argument in self.own}
        if len(shapes) != 1 or len(self.own) > WIDEST:
            return None
        for update in self.members:
            self._number(self.returned.operands[update.result])
        if len(self.order) != len(self.members) or not all(u.reads <= self.own.keys() for u in self.members):
            return None
        results = tuple([self.numbers[self.returned.operands[update.result]] for update in self.order])
        return Lane(tuple(self.order), shapes.pop(), tuple(self.numbers), tuple(self.structure), results)

    def _number(self, root: SSAValue) -> None:
        """Number `root` after what it is computed from (without recursion: chains may be long)."""
        pending = [root]
        while pending:
            value = pending[-1]
            if value in self.numbers:
                pending.pop()
                continue
            op = value.owner
            inputs = op.operands if value in self.reads and isinstance(op, Operation) else ()
            missing = [x for x in inputs if x not in self.numbers]
            if missing:
                pending.extend(reversed(missing))
                continue
            pending.pop()
            self.structure.append(self._describe(value))
            self.numbers[value] = len(self.numbers)

    def _describe(self, value: SSAValue) -> Node:
        op = value.owner
        if value in self.own:
            assert isinstance(value, BlockArgument)
            self.order.append(self.own[value])
            return Node(dtype_of(value), argument=len(self.order) - 1)
        if value in self.reads and isinstance(op, TensorOp):
            operands = tuple([self.numbers[x] for x in op.operands])
            properties = tuple(sorted(op.properties.items(), key=lambda item: item[0]))
            return Node(dtype_of(value), kind=type(op), properties=properties, operands=operands)
        return Node(dtype_of(value), scalar=not shape_of(value))
