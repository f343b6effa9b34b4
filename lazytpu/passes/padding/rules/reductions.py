"""Reductions, windows, scans and sorts: reduced padding holds the identity of the reduction, sorted padding the last
key."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

from lazytpu.ir import reductions as ops
from lazytpu.ir.base import integer
from lazytpu.ir.reductions import identity
from lazytpu.ir.sorting import SortOp
from lazytpu.ir.types import dtype_of, extremes, ints, is_float, shape_of
from lazytpu.passes.padding.dims import Dim, Refused, contiguous, merged_all, sized
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Walk, rule
from lazytpu.passes.padding.windows import Window, windowed


@rule(ops.ReduceOp)
def reduce(w: Walk, op: ops.ReduceOp) -> Sequence[Padded]:
    """Mask reduced dimensions with the identity."""
    over, dims = ints(op.dims), w.dims(op.operand)
    w.mask_operand(op, 0, over, identity(op.kind.data, dtype_of(op.operand)))
    return [Padded(tuple(dim for i, dim in enumerate(dims) if i not in over))]


@rule(ops.ArgreduceOp)
def argreduce(w: Walk, op: ops.ArgreduceOp) -> Sequence[Padded]:
    """Mask with the identity. The first of equal elements wins, which is never padding if there is a true element."""
    along, dims = integer(op.dim), w.dims(op.operand)
    contiguous(dims[along])
    if dims[along].total.range(w.shared.symbols)[0] < 1:
        raise Refused(f"the {op.kind.data} of a dimension of {dims[along].total} elements, which may be none")
    w.mask_operand(op, 0, [along], identity(op.kind.data, dtype_of(op.operand)))
    kept = tuple(dim for i, dim in enumerate(dims) if i != along)
    return [Padded(kept), Padded(kept)]


@rule(ops.CumulativeOp)
def cumulative(w: Walk, op: ops.CumulativeOp) -> Sequence[Padded]:
    """Scan true elements before padding. A merged dimension is masked with the identity."""
    along, dims = integer(op.dim), w.dims(op.operand)
    if not dims[along].prefix:
        w.mask_operand(op, 0, [along], identity(op.kind.data, dtype_of(op.operand)))
    return [Padded(tuple(Dim(dim.factors, dim.free and i != along) for i, dim in enumerate(dims)))]


@rule(ops.ReduceWindowOp)
def reduce_window(w: Walk, op: ops.ReduceWindowOp) -> Sequence[Padded]:
    """Mask the dimensions along which windows slide with the identity."""
    windows, high = (w.forms(op, name, ints(op.properties[name])) for name in ("window", "high"))
    plain = [ints(prop) for prop in (op.strides, op.low, op.base_dilations, op.window_dilations)]
    result: list[Dim] = []
    moved: list[int] = []
    dims, sizes = w.dims(op.operand), shape_of(op.results[0])
    for i, (dim, size, of, end, stride, low, base, dilation) in enumerate(
        zip(dims, sizes, windows, high, *plain, strict=True)
    ):
        window = Window(of, stride, low, end, base, dilation)
        if window.trivial:
            result.append(dim)
        else:
            moved.append(i)
            result.append(windowed(w, dim, window, ints(op.window)[i], size))
    w.mask_operand(op, 0, moved, identity(op.kind.data, dtype_of(op.operand)))
    return [Padded(tuple(result))]


@rule(SortOp)
def sort(w: Walk, op: SortOp) -> Sequence[Padded]:
    """Sort with padding last; NaN is the greatest key. The true elements of a merged dimension are contiguous
    afterwards."""
    along, dims = integer(op.dim), merged_all([w.dims(x) for x in op.operands])
    dtype = dtype_of(op.operands[0])
    low, high = extremes(dtype)
    last = low if integer(op.descending) else nan if is_float(dtype) else high
    if dims[along].padded and w.dims(op.operands[0])[along].factors != dims[along].factors:
        raise Refused("the keys of a sort are all equal, and padded in another way than what is sorted")
    w.mask_operand(op, 0, [along], last)
    result = list(dims)
    if dims[along].padded:
        result[along] = sized(dims[along].size, dims[along].total)
    else:
        result[along] = sized(dims[along].size)
    return [Padded(tuple(result)) for _ in op.results]
