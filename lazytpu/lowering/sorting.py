"""Sorting as in torch: stable, with NaN larger than all numbers, and -0.0 equal to 0.0."""

from __future__ import annotations

from lazytpu.ir import sorting as ops
from lazytpu.ir.base import integer
from lazytpu.ir.types import dtype_of, is_float
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rules import lowers
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo


@lowers(ops.SortOp)
def sort(e: Emission, op: ops.SortOp, *xs: ir.Value) -> list[ir.Value]:
    descending = bool(integer(op.descending))
    dtypes = [dtype_of(op.operand_type(i)) for i in range(len(xs))]
    # XLA would sort constants while it compiles, a hundred times as slowly: half a minute for a million elements.
    xs = tuple(e.create("stablehlo.optimization_barrier", [x], x.type) for x in xs)
    sorted_ = hlo.SortOp([x.type for x in xs], xs, dimension=integer(op.dim), is_stable=True)
    scalars = [e.tensor(dtype) for dtype in dtypes for _ in range(2)]
    block = sorted_.comparator.blocks.append(*scalars, arg_locs=[ir.Location.current] * len(scalars))
    with ir.InsertionPoint(block):
        left, right = block.arguments[0], block.arguments[1]
        before = e.compare("GT" if descending else "LT", left, right, dtypes[0])
        if is_float(dtypes[0]):
            # NaN comes last, or first when descending. Comparing the floats as integers would be no faster: XLA:CPU
            # takes 150 ms for 1000 sorts of 1000 (f32, i64) pairs either way.
            nan = [e.compare("NE", side, side, dtypes[0]) for side in (left, right)]
            own_nan, other_nan = nan if descending else (nan[1], nan[0])
            number = e.create("stablehlo.not", [other_nan], other_nan.type)
            before = e.binary("or", before, e.binary("and", own_nan, number))
        hlo.return_([before])
    return list(sorted_.results)
