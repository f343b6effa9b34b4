"""Outlines clusters of ops as functions, equal clusters as one function."""

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
from lazytpu.ir.location import shared
from lazytpu.passes.clusters.partition import Partition
from lazytpu.passes.clusters.scalar_arguments import PackIndices, ScalarArguments, index_constant, pack_indices
from lazytpu.passes.clusters.sorter import RECOMPUTE
from lazytpu.passes.mark_donation import ALIAS, DONATE, SUCCESSOR
from lazytpu.passes.numbering import AttributeNumbers

NAME = "cluster_{}"

_Callee: TypeAlias = "tuple[FuncOp, bool]"


@dataclass(frozen=True, eq=False)
class Cluster:
    """A cluster to be called: its ops, with copies of free ops before their first use; the values it uses, in order of
    first use; and its results with uses outside, in order of definition."""

    ops: tuple[Operation, ...]
    inputs: tuple[SSAValue, ...]
    outputs: tuple[SSAValue, ...]

    @cached_property
    def indices(self) -> PackIndices:
        """The indices of the run-time numbers that it reads."""
        return pack_indices(self.ops)

    @property
    def location(self) -> LocationAttr:
        """The first known source line of its ops."""
        return next((op.location for op in self.ops if op.location != UNKNOWN_LOC), UNKNOWN_LOC)


def outline(function: FuncOp, parts: Partition) -> list[FuncOp]:
    """Replace the ops of a function by calls of private functions, which are inserted after it and returned.

    An argument of a private function is marked `lazytpu.donate` when its value is dead after every call, with
    `lazytpu.successor`, the result that replaces it, where all calls agree.
    """
    block = function.body.block
    ret = block.last_op
    assert isinstance(ret, ReturnOp)
    clusters = [_cluster(ops, parts.free) for ops in parts.clusters]
    equal_clusters: dict[Hashable, list[Cluster]] = {}
    numbers = AttributeNumbers()
    for cluster in clusters:
        equal_clusters.setdefault(_fingerprint(cluster, numbers), []).append(cluster)
    arguments = _Arguments(function, clusters, ret)
    functions: list[FuncOp] = []
    callees: dict[Cluster, _Callee] = {}
    for equal in equal_clusters.values():
        functions.append(_function(NAME.format(len(functions)), equal, arguments.donated(equal)))
        callees.update((cluster, (functions[-1], _indices_differ(equal))) for cluster in equal)
    _call(block, ret, [(cluster, *callees[cluster]) for cluster in clusters])
    parent = function.parent
    assert parent is not None
    parent.insert_ops_after(functions, function)
    return functions


def _cluster(members: Sequence[Operation], free: set[Operation]) -> Cluster:
    ops: dict[Operation, None] = {}
    inputs: dict[SSAValue, None] = {}
    inside = set(members)

    def need(value: SSAValue) -> None:
        producer = value.owner
        if isinstance(producer, Operation) and producer in free:
            if producer not in ops:
                for operand in producer.operands:
                    need(operand)
                ops[producer] = None
        elif producer not in inside:
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
    """Whether a use of a result is outside its cluster; a free user counts as being where its own users are."""
    if user in inside:
        return False
    if user not in free:
        return True
    if user in seen:
        return False
    seen.add(user)
    return any(_leaves(use.operation, inside, free, seen) for result in user.results for use in result.uses)


def _fingerprint(cluster: Cluster, numbers: AttributeNumbers) -> Hashable:
    """Return a key that is equal for equal computations. It covers ops, attributes, types and data flow, but not source
    lines. Recompute marks and indices of run-time numbers are compared only up to renaming."""
    number_of: dict[SSAValue, int] = {value: i for i, value in enumerate(cluster.inputs)}
    marks: dict[Attribute, int] = {}
    ops: list[Hashable] = []
    for op in cluster.ops:
        operands = tuple(number_of[operand] for operand in op.operands)
        properties: tuple[Hashable, ...]
        if isinstance(op, NumberOp):
            properties = (cluster.indices[op.pack].index(integer(op.index)),)
        else:
            properties = tuple(sorted((name, numbers[value]) for name, value in op.properties.items()))
        attributes = tuple(
            (name, marks.setdefault(value, len(marks)) if name == RECOMPUTE else numbers[value])
            for name, value in sorted(op.attributes.items())
        )
        types = tuple(numbers[r.type] for r in op.results)
        ops.append((type(op), operands, properties, attributes, types, numbers.regions(op)))
        for result in op.results:
            number_of[result] = len(number_of)
    inputs = tuple(numbers[value.type] for value in cluster.inputs)
    return inputs, tuple(ops), tuple(number_of[value] for value in cluster.outputs)


def _indices_differ(equal: Sequence[Cluster]) -> bool:
    """Whether equal clusters read run-time numbers at different indices."""
    return any(list(cluster.indices.values()) != list(equal[0].indices.values()) for cluster in equal)


def _function(name: str, equal: Sequence[Cluster], attributes: list[DictionaryAttr]) -> FuncOp:
    cluster = equal[0]
    block = Block(arg_types=[value.type for value in cluster.inputs])
    values: dict[SSAValue, SSAValue] = dict(zip(cluster.inputs, block.args, strict=True))
    scalars = ScalarArguments(block, cluster.indices, values, cluster.location) if _indices_differ(equal) else None
    for op, *others in zip(*(equal_cluster.ops for equal_cluster in equal), strict=True):
        location = shared([op.location, *(other.location for other in others)])
        if scalars is not None and isinstance(op, NumberOp):
            read = scalars.number(op)
            read.location = location
            block.add_op(read)
            values[op.result] = read.result
            continue
        copy = op.clone(values, clone_name_hints=False)  # the hints name one of the equal layers
        copy.location = location
        block.add_op(copy)
    block.add_op(ReturnOp(*[values[value] for value in cluster.outputs]))
    types = list(block.arg_types), [value.type for value in cluster.outputs]
    attributes += [DictionaryAttr({})] * (len(block.args) - len(attributes))
    return FuncOp(name, types, Region(block), "private", arg_attrs=ArrayAttr(attributes))


def _call(block: Block, ret: ReturnOp, calls: Sequence[tuple[Cluster, FuncOp, bool]]) -> None:
    """Replace all ops before `ret` by calls."""
    replaced = [op for op in block.ops if op is not ret]
    values: dict[SSAValue, SSAValue] = {argument: argument for argument in block.args}
    for cluster, callee, indices_differ in calls:
        arguments = [values[value] for value in cluster.inputs]
        for indices in cluster.indices.values() if indices_differ else ():
            constant = index_constant(indices)
            constant.location = cluster.location
            block.insert_op_before(constant, ret)
            arguments.append(constant.result)
        call = CallOp(callee.sym_name.data, arguments, [value.type for value in cluster.outputs])
        call.location = cluster.location
        block.insert_op_before(call, ret)
        values.update(zip(cluster.outputs, call.results, strict=True))
    ret.operands = [values[operand] for operand in ret.operands]
    for op in reversed(replaced):
        block.erase_op(op)


@dataclass
class _Arguments:
    """Decides which arguments of clusters are donated."""

    function: FuncOp
    clusters: Sequence[Cluster]
    returned: ReturnOp
    last: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    "The number of the last cluster that uses a value; the number of clusters for values that are returned."
    number: dict[Cluster, int] = field(default_factory=dict["Cluster", int])

    def __post_init__(self) -> None:
        for number, cluster in enumerate(self.clusters):
            self.last.update((value, number) for value in cluster.inputs)
            self.number[cluster] = number
        self.last.update((value, len(self.clusters)) for value in self.returned.operands)
        self.attributes = self._attributes()

    def _attributes(self) -> list[dict[str, Attribute]]:
        count = len(self.function.body.block.args)
        arg_attrs = self.function.arg_attrs
        return [{}] * count if arg_attrs is None else [dict(attributes.data) for attributes in arg_attrs]

    def donated(self, equal: Sequence[Cluster]) -> list[DictionaryAttr]:
        """The attributes of the arguments of equal clusters."""
        donations: list[DictionaryAttr] = []
        for i in range(len(equal[0].inputs)):
            attributes: dict[str, Attribute] = {}
            if all(self._dies(cluster, cluster.inputs[i]) for cluster in equal):
                attributes[DONATE] = UnitAttr()
                successors = {self._successor(cluster, cluster.inputs[i]) for cluster in equal}
                successor = successors.pop() if len(successors) == 1 else None
                if successor is not None:
                    attributes[SUCCESSOR] = IntegerAttr(successor, i64)
            donations.append(DictionaryAttr(attributes))
        return donations

    def _dies(self, cluster: Cluster, value: SSAValue) -> bool:
        """Whether a cluster may reuse the buffer of a value."""
        if self.last[value] != self.number[cluster]:
            return False
        if isinstance(value, BlockArgument):
            return not {DONATE, ALIAS}.isdisjoint(self.attributes[value.index])
        return True

    def _successor(self, cluster: Cluster, value: SSAValue) -> int | None:
        """The result of a cluster that the function returns as the successor of an argument; None if there is none."""
        if not isinstance(value, BlockArgument):
            return None
        attributes = self.attributes[value.index]
        number = attributes.get(ALIAS, attributes.get(SUCCESSOR))
        if not isinstance(number, IntegerAttr):
            return None
        result = self.returned.operands[number.value.data]
        return cluster.outputs.index(result) if result in cluster.outputs else None
