"""Collectives. Device d is XLA's replica d.

It is not partition d: partitions run one program on parts of the same values. XLA's partitioner would need annotations
to leave every op alone, and it rejects an all_reduce of several operands (jaxlib 0.10.2). The TPU compiler generates
the same code for both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.ir import Attribute

from lazytpu.ir import collectives as ops
from lazytpu.ir.base import integer
from lazytpu.ir.groups import Groups, MeshGroups, check_groups, devices_of, lists_of
from lazytpu.ir.module import REPLICAS
from lazytpu.ir.types import dtype_of
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rules import lowers
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo


def _lists(e: Emission, prop: Attribute) -> Groups:
    """The groups or pairs of an op. Raises ValueError for devices that the module does not run on."""
    lists = lists_of(prop)
    devices = devices_of(lists)
    if devices > e.replicas:
        raise ValueError(
            f"devices 0 to {devices - 1} take part, but the module is for {e.replicas}: "
            f"expected its attribute {REPLICAS} to be at least {devices}"
        )
    return lists


def _table(e: Emission, prop: Attribute) -> ir.Attribute:
    lists = _lists(e, prop)
    if isinstance(lists, MeshGroups) and e.mesh is not None:
        return _formula(lists.along(e.mesh))
    table = np.array(lists, np.int64)
    return e.dense(table, "i64", table.shape)


def _formula(groups: MeshGroups) -> ir.Attribute:
    """StableHLO's form of groups along the axes of a mesh. libtpu (0.0.42.1) expands it to the same lists.

    All groups of a module need one mesh: XLA (jaxlib 0.10.2) looks up the axes of a second one by name in the first.
    """
    sizes = [f'#stablehlo.mesh_axis<name = "{axis}", size = {size}>' for axis, size in enumerate(groups.mesh)]
    axes = [f'#stablehlo.axis_ref<name = "{axis}">' for axis in groups.axes]
    mesh = f"#stablehlo.mesh<axes = [{', '.join(sizes)}]>"
    return ir.Attribute.parse(f"#stablehlo.replica_group_mesh_axes<mesh = {mesh}, axes = [{', '.join(axes)}]>")


def _is_alone(op: Any) -> bool:
    """Whether each device is a group of its own. XLA refuses such groups of a mesh."""
    return check_groups(lists_of(op.groups)) == 1


@lowers(ops.GroupRankOp)
def group_rank(e: Emission, op: ops.GroupRankOp) -> ir.Value:
    """The number of the replica, mapped to its rank by a formula or a table unless they are equal."""
    groups = _lists(e, op.groups)
    device = e.convert(hlo.replica_id(results=[e.tensor("ui32")]), "i32")
    if len(groups) == 1 and list(groups[0]) == list(range(len(groups[0]))):
        return device
    if isinstance(groups, MeshGroups):
        return _rank_by_formula(e, groups, device)
    ranks = np.empty(sum(map(len, groups)), np.int32)
    for group in groups:
        ranks[list(group)] = range(len(group))
    table = hlo.constant(e.dense(ranks, "i32", ranks.shape))
    return hlo.reshape(e.tensor("i32"), hlo.dynamic_slice(table, [device], [1]))


def _rank_by_formula(e: Emission, groups: MeshGroups, device: ir.Value) -> ir.Value:
    """The coordinates of a device along the axes of its groups, as one number."""

    def number(value: int) -> ir.Value:
        return hlo.constant(e.dense(np.array(value, np.int32), "i32", ()))

    rank = number(0)
    for axis in groups.axes:
        size = number(groups.mesh[axis])
        place = hlo.remainder(hlo.divide(device, number(groups.stride(axis))), size)
        rank = hlo.add(hlo.multiply(rank, size), place)
    return rank


@lowers(ops.AllReduceOp)
def all_reduce(e: Emission, op: ops.AllReduceOp, *xs: ir.Value) -> list[ir.Value]:
    """One op for the operands of each dtype, since the body of the op has one dtype."""
    if _is_alone(op):
        return list(xs)
    results: dict[int, ir.Value] = {}
    dtypes = [dtype_of(x.type) for x in op.operands]
    for dtype in dict.fromkeys(dtypes):
        bucket = [i for i, operand_dtype in enumerate(dtypes) if operand_dtype == dtype]
        reduced = hlo.AllReduceOp([xs[i].type for i in bucket], [xs[i] for i in bucket], _table(e, op.groups))
        e.combiner(reduced.computation, op.kind.data, dtype, one_op=True)
        results.update(zip(bucket, reduced.results, strict=True))
    return [results[i] for i in range(len(xs))]


@lowers(ops.AllGatherOp)
def all_gather(e: Emission, op: ops.AllGatherOp, x: ir.Value) -> ir.Value:
    if _is_alone(op):
        return x
    return hlo.AllGatherOp([e.result(op)], [x], integer(op.dim), _table(e, op.groups)).results[0]


@lowers(ops.ReduceScatterOp)
def reduce_scatter(e: Emission, op: ops.ReduceScatterOp, x: ir.Value) -> ir.Value:
    if _is_alone(op):
        return x
    scattered = hlo.ReduceScatterOp(e.result(op), x, integer(op.dim), _table(e, op.groups))
    e.combiner(scattered.computation, op.kind.data, dtype_of(op.operand_type(0)), one_op=True)
    return scattered.result


@lowers(ops.AllToAllOp)
def all_to_all(e: Emission, op: ops.AllToAllOp, x: ir.Value) -> ir.Value:
    count = check_groups(lists_of(op.groups))
    if count == 1:
        return x
    exchanged = hlo.AllToAllOp([x], integer(op.split_dim), integer(op.concat_dim), count, _table(e, op.groups))
    return exchanged.results[0]


@lowers(ops.CollectivePermuteOp)
def collective_permute(e: Emission, op: ops.CollectivePermuteOp, x: ir.Value) -> ir.Value:
    return hlo.CollectivePermuteOp(x, _table(e, op.pairs)).result
