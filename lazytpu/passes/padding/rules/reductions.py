"""Reductions, windows and scans: reduced padding holds the identity of the reduction."""

from __future__ import annotations

from collections.abc import Sequence

from lazytpu.ir import reductions as ops
from lazytpu.ir.base import TensorOp, integer
from lazytpu.ir.types import dtype_of, ints, shape_of
from lazytpu.passes.padding.dims import Dim, Refused
from lazytpu.passes.padding.masks import Padded, identity
from lazytpu.passes.padding.walk import Rule, Walk
from lazytpu.passes.padding.windows import Window, windowed


def reduce(w: Walk, op: TensorOp) -> Sequence[Padded]:
    """Mask reduced dimensions with the identity."""
    assert isinstance(op, ops.ReduceOp)
    over, dims = ints(op.dims), w.dims(op.operand)
    w.mask_operand(op, 0, over, identity(op.kind.data, dtype_of(op.operand)))
    return [Padded(tuple(dim for i, dim in enumerate(dims) if i not in over))]


def argreduce(w: Walk, op: TensorOp) -> Sequence[Padded]:
    """Mask with the identity. The first of equal elements wins, which is never padding if there is a true element."""
    assert isinstance(op, ops.ArgreduceOp)
    along, dims = integer(op.dim), w.dims(op.operand)
    if not dims[along].prefix:
        raise Refused(f"positions in the merged dimension {dims[along]} are found")
    if dims[along].total.range(w.shared.symbols)[0] < 1:
        raise Refused(f"the {op.kind.data} of a dimension of {dims[along].total} elements, which may be none")
    w.mask_operand(op, 0, [along], identity(op.kind.data, dtype_of(op.operand)))
    kept = tuple(dim for i, dim in enumerate(dims) if i != along)
    return [Padded(kept), Padded(kept)]


def cumulative(w: Walk, op: TensorOp) -> Sequence[Padded]:
    """Scan true elements before padding. A merged dimension is masked with the identity."""
    assert isinstance(op, ops.CumulativeOp)
    along, dims = integer(op.dim), w.dims(op.operand)
    if not dims[along].prefix:
        w.mask_operand(op, 0, [along], identity(op.kind.data, dtype_of(op.operand)))
    return [Padded(tuple(Dim(dim.factors, dim.free and i != along) for i, dim in enumerate(dims)))]


def reduce_window(w: Walk, op: TensorOp) -> Sequence[Padded]:
    """Mask the dimensions along which windows slide with the identity."""
    assert isinstance(op, ops.ReduceWindowOp)
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


RULES: dict[type[TensorOp], Rule] = {
    ops.ReduceOp: reduce,
    ops.ArgreduceOp: argreduce,
    ops.CumulativeOp: cumulative,
    ops.ReduceWindowOp: reduce_window,
}
