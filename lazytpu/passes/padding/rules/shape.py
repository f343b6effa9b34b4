"""Ops that move whole dimensions together with their padding."""

from __future__ import annotations

from collections.abc import Sequence

from lazytpu.ir import shape as ops
from lazytpu.ir.base import integer
from lazytpu.ir.forms import form
from lazytpu.ir.types import ints, numel, shape_of
from lazytpu.passes.padding.arranging import rearranged
from lazytpu.passes.padding.dims import Refused, contiguous, merged_all, reshaped, static
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Walk, rule


@rule(ops.BroadcastInDimOp)
def broadcast(w: Walk, op: ops.BroadcastInDimOp) -> Sequence[Padded]:
    """Mark new and repeated dimensions as free, since elements along them are equal."""
    operand, shape = w.of(op.operand), shape_of(op.results[0])
    result = w.result_dims(op, free=True)
    for dim, to in zip(operand.dims, ints(op.dims), strict=True):
        if dim.size == shape[to] and (dim.size != 1 or dim.padded or not result[to].padded):
            result[to] = dim
        elif dim.padded:
            raise Refused(f"a sized dimension of {dim.total}, at most {dim.size}, is repeated")
    repeats = any(dim.padded for i, dim in enumerate(result) if i not in ints(op.dims))
    return [Padded(tuple(result), None if repeats and not _uniform(operand) else operand.fill)]


def _uniform(value: Padded) -> bool:
    """Return whether all elements of a value are equal, padding included."""
    return all(dim.free or (dim.size == 1 and not dim.padded) for dim in value.dims)


@rule(ops.ReshapeOp)
def reshape(w: Walk, op: ops.ReshapeOp) -> Sequence[Padded] | None:
    """Regroup the factors of the dimensions. If that splits padding, move elements."""
    operand, shape = w.of(op.operands[0]), shape_of(op.results[0])
    result = w.result_dims(op, free=True)
    if _uniform(operand) and operand.dims:
        return [Padded(tuple(result), operand.fill)]
    if not numel(shape):
        return [Padded(tuple([dim.settled for dim in result]), operand.fill)]
    if numel(shape) == 1 or not operand.padded:
        if operand.padded or any(dim.padded for dim in result):
            raise Refused("a sized dimension of at most one element is reshaped")
        return [Padded(static(shape), operand.fill)]
    try:
        return [Padded(reshaped(operand.dims, shape), operand.fill)]
    except Refused:
        target = tuple([dim.settled for dim in result])
        w.replace(op, rearranged(w, op.operands[0], operand.dims, target), Padded(target))
        return None


@rule(ops.TransposeOp)
def transpose(w: Walk, op: ops.TransposeOp) -> Sequence[Padded]:
    """Permute the dimensions."""
    operand = w.of(op.operand)
    return [Padded(tuple(operand.dims[i] for i in ints(op.permutation)), operand.fill)]


@rule(ops.ReverseOp)
def reverse(w: Walk, op: ops.ReverseOp) -> Sequence[Padded] | None:
    """Reverse dimensions and move their padding back to the end by a slice at a run-time start."""
    operand, along = w.of(op.operand), ints(op.dims)
    moved = [i in along and dim.padded for i, dim in enumerate(operand.dims)]
    if not any(moved):
        return [operand]
    contiguous(*[operand.dims[i] for i in along])
    b, memory = w.builder, shape_of(op.operand)
    value, zero = b.reverse(op.operand, along), b.constant(0, "i32")
    high = [dim.size if varies else 0 for varies, dim in zip(moved, operand.dims, strict=True)]
    long = b.pad(value, w.zero(value), [0] * len(memory), high)
    pairs = zip(moved, operand.dims, strict=True)
    starts = [w.number(dim.total * -1 + dim.size) if varies else zero for varies, dim in pairs]
    w.replace(op, b.dynamic_slice(long, starts, memory), Padded(operand.dims))
    return None


@rule(ops.BarrierOp)
def barrier(w: Walk, op: ops.BarrierOp) -> Sequence[Padded]:
    """Keep the padding."""
    return [w.of(op.operands[0])]


@rule(ops.ConcatenateOp)
def concatenate(w: Walk, op: ops.ConcatenateOp) -> Sequence[Padded] | None:
    """Write each operand at the run-time end of the preceding one, over its padding, along a sized dimension.

    The sum of the bounds has room for all operands.
    """
    k, operands = integer(op.dim), [w.of(x) for x in op.operands]
    rank = len(shape_of(op.results[0]))
    dims = list(merged_all([(*x.dims[:k], operands[0].dims[k], *x.dims[k + 1 :]) for x in operands]))
    along = [x.dims[k] for x in operands]
    total = sum((dim.total for dim in along), start=form(0))
    fills = {repr(x.fill) for x in operands if x.padded}
    dims[k] = w.dim(shape_of(op.results[0])[k], total)
    moved = [i for i, dim in enumerate(along) if dim.padded]
    contiguous(*along)
    if not moved or moved[0] == len(along) - 1:
        return [Padded(tuple(dims), next(x.fill for x in operands if x.padded) if len(fills) == 1 else None)]
    # Concatenate the operands up to the first padded one, then write each later one at its run-time start.
    b, first = w.builder, moved[0] + 1
    start = b.concatenate(list(op.operands[:first]), k)
    missing = shape_of(op.results[0])[k] - shape_of(start)[k]
    value = b.pad(start, w.zero(start), [0] * rank, [missing if i == k else 0 for i in range(rank)])
    zero = b.constant(0, "i32")
    at = sum((dim.total for dim in along[:first]), start=form(0))
    for x, dim in zip(op.operands[first:], along[first:], strict=True):
        value = b.dynamic_update_slice(value, x, [w.number(at) if i == k else zero for i in range(rank)])
        at = at + dim.total
    w.replace(op, value, Padded(tuple(dims)))
    return None
