"""Reads and writes at run-time indices.

Out of bounds, `gather`, `dynamic_slice` and `dynamic_update_slice` clamp the start of a slice so that all of it is in
bounds; `scatter` skips a slice if any part of it is out of bounds.
"""

from __future__ import annotations

from math import prod

from lazytpu.ir import indexing as ops
from lazytpu.ir.base import integer
from lazytpu.ir.types import dtype_of, ints, shape_of
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rewrites import from_zero
from lazytpu.lowering.rules import lowers
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo

_NARROW = ("f16", "bf16")


@lowers(ops.GatherOp)
def gather(e: Emission, op: ops.GatherOp, x: ir.Value, indices: ir.Value) -> ir.Value:
    numbers = hlo.GatherDimensionNumbers.get(
        offset_dims=ints(op.offset_dims),
        collapsed_slice_dims=ints(op.collapsed_slice_dims),
        operand_batching_dims=ints(op.operand_batching_dims),
        start_indices_batching_dims=ints(op.start_indices_batching_dims),
        start_index_map=ints(op.start_index_map),
        index_vector_dim=integer(op.index_vector_dim),
    )
    return hlo.gather(
        x, indices, numbers, ints(op.slice_sizes), indices_are_sorted=bool(integer(op.indices_are_sorted))
    )


@lowers(ops.ScatterOp)
def scatter(e: Emission, op: ops.ScatterOp, x: ir.Value, indices: ir.Value, updates: ir.Value) -> ir.Value:
    numbers = hlo.ScatterDimensionNumbers.get(
        update_window_dims=ints(op.update_window_dims),
        inserted_window_dims=ints(op.inserted_window_dims),
        input_batching_dims=ints(op.input_batching_dims),
        scatter_indices_batching_dims=ints(op.scatter_indices_batching_dims),
        scattered_dims_to_operand_dims=ints(op.scatter_dims_to_operand_dims),
        index_vector_dim=integer(op.index_vector_dim),
    )
    dtype, kind = dtype_of(op.operand_type(0)), op.kind.data
    # Elements may receive many updates: in half precision a sum would stop growing, bfloat16 ones at 256.
    combined = kind in ("add", "mul") and not integer(op.unique_indices) and not integer(op.rounded)
    wide = "f32" if dtype in _NARROW and combined else dtype
    x, updates = e.convert(x, wide), e.convert(updates, wide)
    places = [n for dim, n in enumerate(shape_of(op.operand_type(1))) if dim != integer(op.index_vector_dim)]
    if kind == "add" and prod(places) == 1 and op.operands[0] in e.constants:  # XLA makes it a sum of slices
        updates = from_zero(e, updates, wide)
    scattered = hlo.ScatterOp(
        [x.type],
        [x],
        indices,
        [updates],
        numbers,
        indices_are_sorted=bool(integer(op.indices_are_sorted)),
        unique_indices=bool(integer(op.unique_indices)),
    )
    e.combiner(scattered.update_computation, kind, wide)
    return e.convert(scattered.results[0], dtype)


@lowers(ops.DynamicSliceOp)
def dynamic_slice(e: Emission, op: ops.DynamicSliceOp, x: ir.Value, *starts: ir.Value) -> ir.Value:
    return hlo.dynamic_slice(x, starts, ints(op.sizes))


@lowers(ops.DynamicUpdateSliceOp)
def dynamic_update_slice(
    e: Emission, op: ops.DynamicUpdateSliceOp, x: ir.Value, update: ir.Value, *starts: ir.Value
) -> ir.Value:
    return hlo.dynamic_update_slice(x, update, starts)
