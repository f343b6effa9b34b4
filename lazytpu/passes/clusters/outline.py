"""Makes clusters of ops functions of their own, one for all clusters that are equal."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from xdsl.dialects.builtin import UNKNOWN_LOC, ArrayAttr, DictionaryAttr, IntegerAttr, LocationAttr, UnitAttr, i64
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue

from lazytpu.ir.base import integer
from lazytpu.ir.constants import NumberOp
from lazytpu.passes.clusters.partition import RECOMPUTE, Partition
from lazytpu.passes.clusters.scalar_arguments import Picker, Picks, picks_of, places
from lazytpu.passes.mark_donation import ALIAS, DONATE, SUCCESSOR
from lazytpu.passes.numbering import AttributeNumbers

NAME = "cluster_{}"

_Callee: TypeAlias = "tuple[FuncOp, bool]"


@dataclass(frozen=True, eq=False)
class Cluster:
    """A cluster that is to be called: its ops with the copies of free ops where they are first needed, the values it
    takes in the order of their first use, and those of its results that others use, in the order they are made."""

    ops: tuple[Operation, ...]
    inputs: tuple[SSAValue, ...]
    outputs: tuple[SSAValue, ...]

    @cached_property
    def picks(self) -> Picks:
        """The run-time numbers that it reads."""
        return picks_of(self.ops)

    @property
    def location(self) -> LocationAttr:
        """The first source line that is known."""
        return next((op.location for op in self.ops if op.location != UNKNOWN_LOC), UNKNOWN_LOC)


def outline(function: FuncOp, found: Partition) -> list[FuncOp]:
    """Replace the ops of a function by calls of private functions, which are added behind it; returns these.

    An argument of theirs is marked `lazytpu.donate` when at every call nothing needs its value afterwards, with the
    result that takes its place as `lazytpu.successor` where all calls agree.
    """
    block = function.body.block
    returned = block.last_op
    assert isinstance(returned, ReturnOp)
    clusters = [_cluster(ops, found.free) for ops in found.clusters]
    kinds: dict[Hashable, list[Cluster]] = {}
    numbers = AttributeNumbers()
    for cluster in clusters:
        kinds.setdefault(_fingerprint(cluster, numbers), []).append(cluster)
    arguments = _Arguments(function, clusters, returned)
    made: list[FuncOp] = []
    calls: dict[Cluster, _Callee] = {}
    for alike in kinds.values():
        made.append(_function(NAME.format(len(made)), alike, arguments.donated(alike)))
        calls.update((cluster, (made[-1], _read_elsewhere(alike))) for cluster in alike)
    _call(block, returned, [(cluster, *calls[cluster]) for cluster in clusters])
    parent = function.parent
    assert parent is not None
    parent.insert_ops_after(made, function)
    return made


def _cluster(members: Sequence[Operation], free: set[Operation]) -> Cluster:
    ops: dict[Operation, None] = {}
    inputs: dict[SSAValue, None] = {}
    inside = set(members)

    def need(value: SSAValue) -> None:
        maker = value.owner
        if isinstance(maker, Operation) and maker in free:
            if maker not in ops:
                for operand in maker.operands:
                    need(operand)
                ops[maker] = None
        elif maker not in inside:
            inputs[value] = None

    for op in members:
        for operand in op.operands:
            need(operand)
        ops[op] = None
    outputs = [
        result
        for op in members
        for result in op.results
        if any(_leaves(use.operation, inside, free, set()) for use in result.uses)
    ]
    return Cluster(tuple(ops), tuple(inputs), tuple(outputs))


def _leaves(user: Operation, inside: set[Operation], free: set[Operation], seen: set[Operation]) -> bool:
    """Whether a use of a result is outside of its cluster: free users are where their own users are."""
    if user in inside:
        return False
    if user not in free:
        return True
    if user in seen:
        return False
    seen.add(user)
    return any(_leaves(use.operation, inside, free, seen) for result in user.results for use in result.uses)


def _fingerprint(cluster: Cluster, numbers: AttributeNumbers) -> Hashable:
    """Equal for clusters that compute the same: ops, attributes, types, and which operand is which value. Source lines
    are left out; of recompute marks and places of run-time numbers it matters only which are equal."""
    place: dict[SSAValue, int] = {value: i for i, value in enumerate(cluster.inputs)}
    marks: dict[Attribute, int] = {}
    ops: list[Hashable] = []
    for op in cluster.ops:
        operands = tuple(place[operand] for operand in op.operands)
        properties: tuple[Hashable, ...]
        if isinstance(op, NumberOp):
            properties = (cluster.picks[op.pack].index(integer(op.index)),)
        else:
            properties = tuple(sorted((name, numbers[value]) for name, value in op.properties.items()))
        attributes = tuple(
            (name, marks.setdefault(value, len(marks)) if name == RECOMPUTE else numbers[value])
            for name, value in sorted(op.attributes.items())
        )
        ops.append((type(op), operands, properties, attributes, tuple(numbers[r.type] for r in op.results)))
        for result in op.results:
            place[result] = len(place)
    inputs = tuple(numbers[value.type] for value in cluster.inputs)
    return inputs, tuple(ops), tuple(place[value] for value in cluster.outputs)


def _read_elsewhere(alike: Sequence[Cluster]) -> bool:
    """Whether equal clusters read run-time numbers at different places."""
    return any(list(each.picks.values()) != list(alike[0].picks.values()) for each in alike)


def _function(name: str, alike: Sequence[Cluster], attributes: list[DictionaryAttr]) -> FuncOp:
    cluster = alike[0]
    block = Block(arg_types=[value.type for value in cluster.inputs])
    values: dict[SSAValue, SSAValue] = dict(zip(cluster.inputs, block.args, strict=True))
    picker = Picker(block, cluster.picks, values, cluster.location) if _read_elsewhere(alike) else None
    for op in cluster.ops:
        if picker is not None and isinstance(op, NumberOp):
            read = picker.number(op)
            read.location = op.location
            block.add_op(read)
            values[op.result] = read.result
            continue
        copy = op.clone_without_regions(values, clone_name_hints=False)  # they would be those of one of the layers
        copy.location = op.location
        block.add_op(copy)
    block.add_op(ReturnOp(*[values[value] for value in cluster.outputs]))
    types = list(block.arg_types), [value.type for value in cluster.outputs]
    attributes += [DictionaryAttr({})] * (len(block.args) - len(attributes))
    return FuncOp(name, types, Region(block), "private", arg_attrs=ArrayAttr(attributes))


def _call(block: Block, returned: ReturnOp, calls: Sequence[tuple[Cluster, FuncOp, bool]]) -> None:
    """Put calls in the place of all ops before `returned`."""
    former = [op for op in block.ops if op is not returned]
    values: dict[SSAValue, SSAValue] = {argument: argument for argument in block.args}
    for cluster, callee, read_elsewhere in calls:
        given = [values[value] for value in cluster.inputs]
        for indices in cluster.picks.values() if read_elsewhere else ():
            constant = places(indices)
            constant.location = cluster.location
            block.insert_op_before(constant, returned)
            given.append(constant.result)
        call = CallOp(callee.sym_name.data, given, [value.type for value in cluster.outputs])
        call.location = cluster.location
        block.insert_op_before(call, returned)
        values.update(zip(cluster.outputs, call.results, strict=True))
    returned.operands = [values[operand] for operand in returned.operands]
    for op in reversed(former):
        block.erase_op(op)


@dataclass
class _Arguments:
    """What becomes of the values that clusters take."""

    function: FuncOp
    clusters: Sequence[Cluster]
    returned: ReturnOp
    last: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    "The number of the last cluster that takes a value; that of the return for what is returned."
    number: dict[Cluster, int] = field(default_factory=dict["Cluster", int])

    def __post_init__(self) -> None:
        for number, cluster in enumerate(self.clusters):
            self.last.update((value, number) for value in cluster.inputs)
            self.number[cluster] = number
        self.last.update((value, len(self.clusters)) for value in self.returned.operands)
        self.attributes = self._attributes()

    def _attributes(self) -> list[dict[str, Attribute]]:
        count = len(self.function.body.block.args)
        known = self.function.arg_attrs
        return [{}] * count if known is None else [dict(attributes.data) for attributes in known]

    def donated(self, alike: Sequence[Cluster]) -> list[DictionaryAttr]:
        """The attributes of the arguments of equal clusters."""
        made: list[DictionaryAttr] = []
        for i in range(len(alike[0].inputs)):
            attributes: dict[str, Attribute] = {}
            if all(self._dies(cluster, cluster.inputs[i]) for cluster in alike):
                attributes[DONATE] = UnitAttr()
                successors = {self._successor(cluster, cluster.inputs[i]) for cluster in alike}
                successor = successors.pop() if len(successors) == 1 else None
                if successor is not None:
                    attributes[SUCCESSOR] = IntegerAttr(successor, i64)
            made.append(DictionaryAttr(attributes))
        return made

    def _dies(self, cluster: Cluster, value: SSAValue) -> bool:
        """Whether a cluster may take the memory of a value."""
        if self.last[value] != self.number[cluster]:
            return False
        if isinstance(value, BlockArgument):
            return not {DONATE, ALIAS}.isdisjoint(self.attributes[value.index])
        return True

    def _successor(self, cluster: Cluster, value: SSAValue) -> int | None:
        """The result of a cluster that the function returns in the place of one of its arguments."""
        if not isinstance(value, BlockArgument):
            return None
        known = self.attributes[value.index]
        number = known.get(ALIAS, known.get(SUCCESSOR))
        if not isinstance(number, IntegerAttr):
            return None
        result = self.returned.operands[number.value.data]
        return cluster.outputs.index(result) if result in cluster.outputs else None
