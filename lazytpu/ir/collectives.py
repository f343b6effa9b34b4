"""Collectives. Every device runs the same program on its own values; device d is replica d of the program.

`groups` partitions the devices: a device communicates within its group, and its position in that list is its rank.
`mesh_groups` derives groups from the axes of a mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod
from typing import ClassVar, TypeAlias

from xdsl.dialects.builtin import AnyTensorType, ArrayAttr
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.hints import isa

from lazytpu.ir.agreement import CommunicatingOp
from lazytpu.ir.base import INT, TENSOR, WORD, check_dim, check_dtype, integer, one_of
from lazytpu.ir.reductions import KINDS
from lazytpu.ir.types import dtype_of, int_array, ints, shape_of, tensor_type

LISTS = ArrayAttr.constr()
"A property that is a list of lists of integers."

Groups: TypeAlias = Sequence[Sequence[int]]


def lists_attr(lists: Groups) -> Attribute:
    """The property that holds lists of integers."""
    return ArrayAttr([int_array(values) for values in lists])


def lists_of(prop: Attribute) -> tuple[tuple[int, ...], ...]:
    """The lists of integers of a property."""
    if not isa(prop, ArrayAttr[Attribute]):
        raise ValueError(f"expected a list of lists of integers, got {prop}")
    return tuple(ints(values) for values in prop)


def mesh_groups(mesh: Mapping[str, int], axes: Iterable[str]) -> list[list[int]]:
    """The groups of devices that differ only in their coordinates along `axes` of a mesh.

    `mesh` maps each axis to its size, major first: devices are numbered in row-major order, and in a group the last of
    `axes` varies fastest. mesh_groups({"data": 2, "model": 2}, ["data"]) is [[0, 2], [1, 3]].
    """
    inside = list(axes)
    unknown = [axis for axis in inside if axis not in mesh]
    if unknown or len(set(inside)) != len(inside):
        raise ValueError(f"axes are {inside}; expected distinct axes of the mesh {dict(mesh)}")
    names = list(mesh)
    strides = {name: prod(list(mesh.values())[i + 1 :]) for i, name in enumerate(names)}

    def offsets(chosen: Sequence[str]) -> list[int]:
        points = product(*(range(mesh[name]) for name in chosen))
        return [sum(i * strides[name] for i, name in zip(point, chosen, strict=True)) for point in points]

    outside = [name for name in names if name not in inside]
    return [[first + offset for offset in offsets(inside)] for first in offsets(outside)]


class CollectiveOp(CommunicatingOp):
    """A collective of the dialect. Devices that take part in it have to agree on the branches and loops around it."""

    @property
    def members(self) -> Groups:
        if "pairs" in self.properties:
            return (sorted({device for pair in lists_of(self.properties["pairs"]) for device in pair}),)
        return lists_of(self.properties["groups"])

    def print_property(self, name: str, printer: Printer) -> None:
        if name in ("groups", "pairs"):
            printer.print_string(str([list(values) for values in lists_of(self.properties[name])]))
        else:
            super().print_property(name, printer)

    @classmethod
    def parse_property(cls, name: str, parser: Parser) -> Attribute:
        if name not in ("groups", "pairs"):
            return super().parse_property(name, parser)
        square = parser.Delimiter.SQUARE
        return lists_attr(
            parser.parse_comma_separated_list(
                square, lambda: parser.parse_comma_separated_list(square, parser.parse_integer)
            )
        )


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


def check_groups(groups: Groups) -> int:
    """The number of devices in a group. Raises ValueError unless groups have equal sizes and partition the devices 0 to
    n-1."""
    sizes = {len(group) for group in groups}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"groups are {_shown(groups)}; expected at least one, all of one size")
    devices = sorted(device for group in groups for device in group)
    if devices != list(range(len(devices))):
        raise ValueError(f"groups are {_shown(groups)}; expected each device from 0 to {len(devices) - 1} once")
    return sizes.pop()


def _shown(lists: Groups) -> list[list[int]]:
    return [list(values) for values in lists]


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
    shape[check_dim(concat_dim, len(shape), "concat_dim")] *= len(groups[0])
    return tensor_type(dtype_of(operand), shape)


def collective_permute_type(operand: AnyTensorType, pairs: Groups) -> AnyTensorType:
    if not pairs or any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        raise ValueError(f"pairs are {_shown(pairs)}; expected at least one [source, target] pair of devices")
    for role, devices in (("source", [p[0] for p in pairs]), ("target", [p[1] for p in pairs])):
        if len(set(devices)) != len(devices):
            raise ValueError(f"pairs are {_shown(pairs)}; expected each device as a {role} at most once")
    return operand
