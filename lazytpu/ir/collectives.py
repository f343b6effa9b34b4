"""Collectives. Every device runs the same program on its own values; device d is replica d of the program.

`groups` (lazytpu/ir/groups.py) partitions the devices: a device communicates within its group, and its position in it
is its rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import AnyTensorType
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer

from lazytpu.ir.agreement import CommunicatingOp
from lazytpu.ir.base import INT, TENSOR, WORD, check_dim, check_dtype, integer, one_of
from lazytpu.ir.groups import LISTS, Groups, check_groups, lists_of, parse_lists, shown
from lazytpu.ir.reductions import KINDS
from lazytpu.ir.types import dtype_of, shape_of, tensor_type


class CollectiveOp(CommunicatingOp):
    """A collective of the dialect. Devices that take part in it have to agree on the branches and loops around it."""

    @property
    def members(self) -> Groups:
        if "pairs" in self.properties:
            return (sorted({device for pair in lists_of(self.properties["pairs"]) for device in pair}),)
        return lists_of(self.properties["groups"])

    def print_property(self, name: str, printer: Printer) -> None:
        if name in ("groups", "pairs"):
            printer.print_string(shown(lists_of(self.properties[name])))
        else:
            super().print_property(name, printer)

    @classmethod
    def parse_property(cls, name: str, parser: Parser) -> Attribute:
        if name not in ("groups", "pairs"):
            return super().parse_property(name, parser)
        return parse_lists(parser)


@irdl_op_definition
class GroupRankOp(CollectiveOp):
    """The rank of this device in its group (0-d i32), from 0."""

    name = "lazytpu.group_rank"
    groups = prop_def(LISTS)
    result = result_def(TENSOR)

    @property
    def members(self) -> Groups:
        return ()  # no device waits for another one

    def infer(self) -> Sequence[AnyTensorType]:
        check_groups(lists_of(self.groups))
        return (tensor_type("i32", ()),)


@irdl_op_definition
class AllReduceOp(CollectiveOp):
    """The elementwise reduction of each operand over the devices of the group, available on all of them. Several
    operands form a bucket, which is sent as one message."""

    name = "lazytpu.all_reduce"
    SHARED: ClassVar = True
    HEAD: ClassVar = "kind"
    inputs = var_operand_def(TENSOR)
    kind = prop_def(WORD)
    groups = prop_def(LISTS)
    outputs = var_result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        types = [self.operand_type(i) for i in range(len(self.operands))]
        return all_reduce_types(one_of(self.kind, KINDS, "kind"), types, lists_of(self.groups))


@irdl_op_definition
class AllGatherOp(CollectiveOp):
    """The operands of all devices of the group, concatenated along `dim` in the order of the group."""

    name = "lazytpu.all_gather"
    SHARED: ClassVar = True
    operand = operand_def(TENSOR)
    dim = prop_def(INT)
    groups = prop_def(LISTS)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (all_gather_type(self.operand_type(0), integer(self.dim), lists_of(self.groups)),)


@irdl_op_definition
class ReduceScatterOp(CollectiveOp):
    """This device's part of an `all_reduce`, which is divided along `dim` into equal parts, one for each device of the
    group, in rank order."""

    name = "lazytpu.reduce_scatter"
    HEAD: ClassVar = "kind"
    operand = operand_def(TENSOR)
    kind = prop_def(WORD)
    dim = prop_def(INT)
    groups = prop_def(LISTS)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        kind = one_of(self.kind, KINDS, "kind")
        return (reduce_scatter_type(kind, self.operand_type(0), integer(self.dim), lists_of(self.groups)),)


@irdl_op_definition
class AllToAllOp(CollectiveOp):
    """Each device splits its operand along `split_dim` into equal parts, one for each device of the group, and
    concatenates the parts that it receives along `concat_dim`, in the order of the group."""

    name = "lazytpu.all_to_all"
    operand = operand_def(TENSOR)
    split_dim = prop_def(INT)
    concat_dim = prop_def(INT)
    groups = prop_def(LISTS)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        dims = integer(self.split_dim), integer(self.concat_dim)
        return (all_to_all_type(self.operand_type(0), *dims, lists_of(self.groups)),)


@irdl_op_definition
class CollectivePermuteOp(CollectiveOp):
    """For each pair [source, target], the operand of the source is the result of the target; a device that is not a
    target gets zeros."""

    name = "lazytpu.collective_permute"
    operand = operand_def(TENSOR)
    pairs = prop_def(LISTS)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (collective_permute_type(self.operand_type(0), lists_of(self.pairs)),)


def _check_kind(kind: str, operand: AnyTensorType) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
    check_dtype(dtype_of(operand), KINDS[kind], f"an operand of a reduction by {kind}")


def all_reduce_types(kind: str, operands: Sequence[AnyTensorType], groups: Groups) -> Sequence[AnyTensorType]:
    if not operands:
        raise ValueError("all_reduce needs at least one operand")
    for operand in operands:
        _check_kind(kind, operand)
    check_groups(groups)
    return operands


def all_gather_type(operand: AnyTensorType, dim: int, groups: Groups) -> AnyTensorType:
    shape = list(shape_of(operand))
    shape[check_dim(dim, len(shape))] *= check_groups(groups)
    return tensor_type(dtype_of(operand), shape)


def _part(operand: AnyTensorType, dim: int, groups: Groups, what: str) -> list[int]:
    """Return the shape of one part, if a group splits `operand` along `dim`."""
    shape, count = list(shape_of(operand)), check_groups(groups)
    size = shape[check_dim(dim, len(shape), what)]
    if size % count:
        raise ValueError(f"dimension {dim} of {operand} cannot be split into {count} equal parts, one per device")
    shape[dim] = size // count
    return shape


def reduce_scatter_type(kind: str, operand: AnyTensorType, dim: int, groups: Groups) -> AnyTensorType:
    _check_kind(kind, operand)
    return tensor_type(dtype_of(operand), _part(operand, dim, groups, "dim"))


def all_to_all_type(operand: AnyTensorType, split_dim: int, concat_dim: int, groups: Groups) -> AnyTensorType:
    shape = _part(operand, split_dim, groups, "split_dim")
    shape[check_dim(concat_dim, len(shape), "concat_dim")] *= check_groups(groups)
    return tensor_type(dtype_of(operand), shape)


def collective_permute_type(operand: AnyTensorType, pairs: Groups) -> AnyTensorType:
    if not pairs or any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        raise ValueError(f"pairs are {shown(pairs)}; expected at least one [source, target] pair of devices")
    for role, devices in (("source", [p[0] for p in pairs]), ("target", [p[1] for p in pairs])):
        if len(set(devices)) != len(devices):
            raise ValueError(f"pairs are {shown(pairs)}; expected each device as a {role} at most once")
    return operand
