"""Reductions, windowed reductions, arg-reductions and scans.

Sums and products of f16 and bf16 are accumulated in f32 and rounded once. max and min propagate NaN, as StableHLO's
maximum and minimum do. On i1, add and max are "or", mul and min are "and", as in StableHLO.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lazytpu.ir import reductions as ops
from lazytpu.ir.base import integer
from lazytpu.ir.types import dtype_of, ints, is_float, shape_of
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rules import lowers
from lazytpu.runtime.client import ir
from lazytpu.runtime.client import stablehlo as hlo

_NARROW = frozenset(("f16", "bf16"))


def _accumulator(kind: str, dtype: str) -> str:
    """The dtype to reduce in."""
    return "f32" if dtype in _NARROW and kind in ("add", "mul") else dtype


def _reduce(e: Emission, kind: str, x: ir.Value, dtype: str, dims: Sequence[int]) -> ir.Value:
    """x reduced over `dims`; accumulates in `dtype`, which is also that of x."""
    x = e.settled(x)
    shape = [size for dim, size in enumerate(ir.RankedTensorType(x.type).shape) if dim not in dims]
    start = e.constant(e.identity(kind, dtype), dtype)
    op = hlo.ReduceOp([e.tensor(dtype, shape)], [x], [start], list(dims))
    e.combiner(op.body, kind, dtype)
    return op.results[0]


@lowers(ops.ReduceOp)
def reduce(e: Emission, op: ops.ReduceOp, x: ir.Value) -> ir.Value:
    kind, dtype = op.kind.data, dtype_of(op.operand_type(0))
    wide = _accumulator(kind, dtype)
    return e.convert(_reduce(e, kind, e.convert(x, wide), wide, ints(op.dims)), dtype)


@lowers(ops.ArgreduceOp)
def argreduce(e: Emission, op: ops.ArgreduceOp, x: ir.Value) -> list[ir.Value]:
    """The extreme value, then the least index of an element equal to it (or of a NaN): two plain reductions, which
    XLA:CPU vectorizes. One reduction of (value, index) pairs takes 4 to 14 times as long there."""
    kind, dim = op.kind.data, integer(op.dim)
    dtype, shape = dtype_of(op.operand_type(0)), shape_of(op.operand_type(0))
    counter = "i32" if shape[dim] <= np.iinfo(np.int32).max else "i64"
    value = _reduce(e, kind, x, dtype, [dim])
    rest = [d for d in range(len(shape)) if d != dim]
    hit = e.compare("EQ", x, hlo.broadcast_in_dim(e.type(op.operand_type(0)), value, rest), dtype)
    if is_float(dtype):
        hit = e.binary("or", hit, e.compare("NE", x, x, dtype))
    index = hlo.iota(e.tensor(counter, shape), dim)
    hit_index = hlo.select(hit, index, e.constant(shape[dim], counter, shape))
    return [value, e.convert(_reduce(e, "min", hit_index, counter, [dim]), "i64")]


def _reduce_window(
    e: Emission,
    kind: str,
    x: ir.Value,
    dtype: str,
    result: ir.RankedTensorType,
    padding: Sequence[tuple[int, int]],
    **windows: Sequence[int],
) -> ir.Value:
    wide = _accumulator(kind, dtype)
    op = hlo.ReduceWindowOp(
        [e.tensor(wide, result.shape)],
        [e.settled(e.convert(x, wide))],
        [e.constant(e.identity(kind, wide), wide)],
        padding=e.dense(np.array(padding, np.int64), "i64", (len(padding), 2)),
        **windows,  # pyright: ignore[reportArgumentType]
    )
    e.combiner(op.body, kind, wide)
    return e.convert(op.results[0], dtype)


@lowers(ops.ReduceWindowOp)
def reduce_window(e: Emission, op: ops.ReduceWindowOp, x: ir.Value) -> ir.Value:
    return _reduce_window(
        e,
        op.kind.data,
        x,
        dtype_of(op.operand_type(0)),
        e.result(op),
        list(zip(ints(op.low), ints(op.high), strict=True)),
        window_dimensions=ints(op.window),
        window_strides=ints(op.strides),
        base_dilations=ints(op.base_dilations),
        window_dilations=ints(op.window_dilations),
    )


@lowers(ops.CumulativeOp)
def cumulative(e: Emission, op: ops.CumulativeOp, x: ir.Value) -> ir.Value:
    """A reduce_window over all previous elements, which XLA rewrites into a tree of short scans: one million f32 take
    3.3 ms on XLA:CPU (a chain of shifted additions 48 ms), and rounding errors grow with the depth of the tree only."""
    shape, dim = shape_of(op.operand_type(0)), integer(op.dim)
    if shape[dim] <= 1 or 0 in shape:
        return x
    return _reduce_window(
        e,
        op.kind.data,
        x,
        dtype_of(op.operand_type(0)),
        e.result(op),
        [(size - 1, 0) if d == dim else (0, 0) for d, size in enumerate(shape)],
        window_dimensions=[size if d == dim else 1 for d, size in enumerate(shape)],
    )
