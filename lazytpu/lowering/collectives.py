"""Collectives. Device d is XLA's replica d.

It is not partition d: partitions run one program on parts of the same values. XLA's partitioner would need annotations
to leave every op alone, and it rejects an all_reduce of several operands (jaxlib 0.10.2). The TPU compiler generates
the same code for both.
"""

from __future__ import annotations

import numpy as np
from xdsl.ir import Attribute

from lazytpu.ir import collectives as ops
from lazytpu.ir.base import integer
from lazytpu.ir.collectives import lists_of
from lazytpu.ir.module import REPLICAS
from lazytpu.ir.types import dtype_of
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rules import lowers
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo


def _lists(e: Emission, prop: Attribute) -> tuple[tuple[int, ...], ...]:
    """The groups or pairs of an op. Raises ValueError for devices that the module does not run on."""
    lists = lists_of(prop)
    devices = 1 + max(max(values) for values in lists)
    if devices > e.replicas:
        raise ValueError(
            f"devices 0 to {devices - 1} take part, but the module is for {e.replicas}: "
            f"expected its attribute {REPLICAS} to be at least {devices}"
        )
    return lists


def _table(e: Emission, prop: Attribute) -> ir.DenseElementsAttr:
    table = np.array(_lists(e, prop), np.int64)
    return e.dense(table, "i64", table.shape)


@lowers(ops.GroupRankOp)
def group_rank(e: Emission, op: ops.GroupRankOp) -> ir.Value:
    """The number of the replica, mapped to its rank by a table unless they are equal."""
    groups = _lists(e, op.groups)
    device = e.convert(hlo.replica_id(results=[e.tensor("ui32")]), "i32")
    if groups == (tuple(range(len(groups[0]))),):
        return device
    ranks = np.empty(sum(map(len, groups)), np.int32)
    for group in groups:
        ranks[list(group)] = range(len(group))
    table = hlo.constant(e.dense(ranks, "i32", ranks.shape))
    return hlo.reshape(e.tensor("i32"), hlo.dynamic_slice(table, [device], [1]))


@lowers(ops.AllReduceOp)
def all_reduce(e: Emission, op: ops.AllReduceOp, *xs: ir.Value) -> list[ir.Value]:
    """One op for the operands of each dtype, since the body of the op has one dtype."""
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
    return hlo.AllGatherOp([e.result(op)], [x], integer(op.dim), _table(e, op.groups)).results[0]


@lowers(ops.ReduceScatterOp)
def reduce_scatter(e: Emission, op: ops.ReduceScatterOp, x: ir.Value) -> ir.Value:
    scattered = hlo.ReduceScatterOp(e.result(op), x, integer(op.dim), _table(e, op.groups))
    e.combiner(scattered.computation, op.kind.data, dtype_of(op.operand_type(0)), one_op=True)
    return scattered.result


@lowers(ops.AllToAllOp)
def all_to_all(e: Emission, op: ops.AllToAllOp, x: ir.Value) -> ir.Value:
    count = len(lists_of(op.groups)[0])
    exchanged = hlo.AllToAllOp([x], integer(op.split_dim), integer(op.concat_dim), count, _table(e, op.groups))
    return exchanged.results[0]


@lowers(ops.CollectivePermuteOp)
def collective_permute(e: Emission, op: ops.CollectivePermuteOp, x: ir.Value) -> ir.Value:
    return hlo.CollectivePermuteOp(x, _table(e, op.pairs)).result
