"""Reductions, windowed reductions, arg-reductions and scans.

Sums and products of f16 and bf16 are accumulated in f32 and rounded once. On i1, add and max are "or", mul and min are
"and", as in StableHLO.

max and min of floats give NaN for any NaN, for any behaviour of `maximum`. XLA:CPU offloads a reduction by it to
YNNPACK, which returns the maximum of the other numbers. So they are reduced by comparisons there, and elsewhere in
pairs (number, is it NaN). `peak` is the reduction by `maximum`. Microseconds for f32 on XLA:CPU (2 cores, least of 7
runs), and by libtpu's estimates for v6e; "two" has a second reduction that finds NaN, "bits" reduces ordered integers:

| | YNNPACK | `maximum` without it | comparisons | two | bits | v6e: `maximum` | pairs | two |
|---|---|---|---|---|---|---|---|---|
| 1,048,576 to 1 | 83 | 904 | 239 | 263 | 872 | 2.9 | 2.9 | 3.2 |
| 4096 rows of 256 | 70 | 881 | 132 | 267 | 765 | 2.9 | 2.9 | 3.2 |
| 64 columns of 16384 | 67 | 153 | 248 | 141 | 172 | 2.9 | 2.9 | 3.2 |
| 512 rows of 50304 | | | | | | 62.9 | 63.2 | 126.1 |

Comparisons are no option for a TPU: libtpu 0.0.42 fails to compile one between conversions from and to bf16.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from lazytpu.ir import reductions as ops
from lazytpu.ir.base import integer
from lazytpu.ir.reductions import ORDERED, identity
from lazytpu.ir.types import REAL_OF, dtype_of, ints, is_complex, is_float, shape_of
from lazytpu.lowering.emission import COMBINERS, Emission
from lazytpu.lowering.rewrites import from_zero, is_joined, is_repeated
from lazytpu.lowering.rules import lowers
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo

_NARROW = frozenset(("f16", "bf16"))


def _accumulator(e: Emission, kind: str, dtype: str) -> str:
    """The dtype to reduce in. XLA:CPU compares f16 and bf16 one element after the other, 10 times as slowly as f32."""
    if kind == "total" and dtype == "f32" and e.target != "tpu":
        return "f64"
    wide = kind in ("add", "mul", "total") or (kind in ORDERED and e.target == "cpu")
    return "f32" if dtype in _NARROW and wide else dtype


def _reduce(e: Emission, kind: str, x: ir.Value, dtype: str, dims: Sequence[int]) -> ir.Value:
    """x, of `dtype`, reduced over `dims`."""
    if kind in ORDERED and is_float(dtype) and e.target != "cpu":
        return _with_nan(e, kind, x, dtype, dims)
    if kind in ("add", "total") and is_complex(dtype):  # XLA:CPU adds complex numbers one after the other, inexactly
        return hlo.complex(*(_reduce(e, kind, part(x), REAL_OF[dtype], dims) for part in (hlo.real, hlo.imag)))
    kept = _kept(x, dims)
    if kind in ("add", "total") and prod(kept) == prod(ir.RankedTensorType(x.type).shape):
        return from_zero(e, hlo.reshape(e.tensor(dtype, kept), x), dtype)
    wide = _accumulator(e, kind, dtype)
    x = e.settled(e.convert(x, wide))
    start = e.constant(identity(kind, wide), wide)
    op = hlo.ReduceOp([e.tensor(wide, kept)], [x], [start], list(dims))
    e.combiner(op.body, kind, wide)
    return e.convert(op.results[0], dtype)


def _with_nan(e: Emission, kind: str, x: ir.Value, dtype: str, dims: Sequence[int]) -> ir.Value:
    """The max or min of floats as a reduction of (number, whether it is NaN)."""
    kinds = {dtype: kind, "i1": "or"}
    missing = e.compare("NE", x, x, dtype)
    shape = _kept(x, dims)
    starts = [e.constant(identity(by, of), of) for of, by in kinds.items()]
    op = hlo.ReduceOp([e.tensor(of, shape) for of in kinds], [x, missing], starts, list(dims))
    scalars = [e.tensor(of) for of in (*kinds, *kinds)]
    block = op.body.blocks.append(*scalars, arg_locs=[ir.Location.current] * len(scalars))
    with ir.InsertionPoint(block):
        pairs = zip(kinds.values(), list(block.arguments)[:2], list(block.arguments)[2:], strict=True)
        hlo.return_([e.binary(COMBINERS[by].removeprefix("stablehlo."), left, right) for by, left, right in pairs])
    return hlo.select(op.results[1], e.constant(np.nan, dtype, shape), op.results[0])


def _kept(x: ir.Value, dims: Sequence[int]) -> list[int]:
    """The shape of x without `dims`."""
    return [size for dim, size in enumerate(ir.RankedTensorType(x.type).shape) if dim not in dims]


@lowers(ops.ReduceOp)
def reduce(e: Emission, op: ops.ReduceOp, x: ir.Value) -> ir.Value:
    kind, dtype, dims = op.kind.data, dtype_of(op.operand_type(0)), ints(op.dims)
    adds = kind in ("add", "total") and (is_float(dtype) or is_complex(dtype))
    repeated = adds and is_repeated(e, op.operands[0])
    if repeated:
        kind = "total"  # XLA:CPU adds repeated elements one after the other
    wide, producer = _accumulator(e, kind, dtype), x.owner
    if wide == "f64" and not isinstance(producer, ir.Block) and producer.name == "stablehlo.multiply":
        factors = [e.convert(factor, wide) for factor in producer.operands]  # in f64, squares do not overflow
        total = e.convert(_reduce(e, kind, e.binary("multiply", *factors), wide, dims), dtype)
    else:
        total = _reduce(e, kind, x, dtype, dims)
    return from_zero(e, total, dtype) if repeated or (adds and is_joined(op.operands[0])) else total


@lowers(ops.ArgreduceOp)
def argreduce(e: Emission, op: ops.ArgreduceOp, x: ir.Value) -> list[ir.Value]:
    """The extreme value, then the least index of an element equal to it (or of a NaN): two plain reductions, which
    XLA:CPU vectorizes. One reduction of (value, index) pairs takes 4 to 14 times as long there. The value is the
    element at that index, which may be the other zero; accelerators, where a gather is dear, give either zero."""
    kind, dim = op.kind.data, integer(op.dim)
    dtype, shape = dtype_of(op.operand_type(0)), shape_of(op.operand_type(0))
    counter = "i32" if shape[dim] <= np.iinfo(np.int32).max else "i64"
    value = _reduce(e, kind, x, dtype, [dim])
    other_dims = [d for d in range(len(shape)) if d != dim]
    hit = e.compare("EQ", x, hlo.broadcast_in_dim(e.type(op.operand_type(0)), value, other_dims), dtype)
    if is_float(dtype):
        hit = e.binary("or", hit, e.compare("NE", x, x, dtype))
    index = hlo.iota(e.tensor(counter, shape), dim)
    hit_index = hlo.select(hit, index, e.constant(shape[dim], counter, shape))
    first = _reduce(e, "min", hit_index, counter, [dim])
    if is_float(dtype) and e.target == "cpu":
        value = _element_at(x, first, dim)
    return [value, e.convert(first, "i64")]


def _element_at(x: ir.Value, index: ir.Value, dim: int) -> ir.Value:
    """x at one index along `dim` for each place in the other dimensions."""
    rank = len(ir.RankedTensorType(x.type).shape)
    other_dims = [d for d in range(rank) if d != dim]
    numbers = hlo.GatherDimensionNumbers.get(
        offset_dims=[],
        collapsed_slice_dims=[dim],
        operand_batching_dims=other_dims,
        start_indices_batching_dims=list(range(rank - 1)),
        start_index_map=[dim],
        index_vector_dim=rank - 1,
    )
    return hlo.gather(x, index, numbers, [1] * rank)


def _reduce_window(
    e: Emission,
    kind: str,
    x: ir.Value,
    dtype: str,
    result: ir.RankedTensorType,
    padding: Sequence[tuple[int, int]],
    **windows: Sequence[int],
) -> ir.Value:
    wide = _accumulator(e, kind, dtype)
    op = hlo.ReduceWindowOp(
        [e.tensor(wide, result.shape)],
        [e.settled(e.convert(x, wide))],
        [e.constant(identity(kind, wide), wide)],
        padding=e.dense(np.array(padding, np.int64), "i64", (len(padding), 2)),
        **windows,  # pyright: ignore[reportArgumentType]
    )
    e.combiner(op.body, kind, wide)
    total = e.convert(op.results[0], dtype)
    return from_zero(e, total, dtype) if kind == "add" and prod(windows["window_dimensions"]) == 1 else total


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
    3.3 ms on XLA:CPU (a chain of shifted additions 48 ms), and rounding errors grow with the depth of the tree only.

    Sums and products of f32 are accumulated in f64, as in torch's CPU kernels, except on TPUs, which emulate it."""
    shape, dim = shape_of(op.operand_type(0)), integer(op.dim)
    dtype = dtype_of(op.operand_type(0))
    if shape[dim] <= 1 or 0 in shape:
        return from_zero(e, x, dtype) if op.kind.data == "add" else x
    doubled = op.kind.data in ("add", "mul") and dtype == "f32" and e.target != "tpu"
    wide = "f64" if doubled else dtype
    total = _reduce_window(
        e,
        op.kind.data,
        e.convert(x, wide),
        wide,
        e.tensor(wide, shape),
        [(size - 1, 0) if d == dim else (0, 0) for d, size in enumerate(shape)],
        window_dimensions=[size if d == dim else 1 for d, size in enumerate(shape)],
    )
    return e.convert(total, dtype)
