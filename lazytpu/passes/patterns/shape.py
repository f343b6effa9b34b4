"""Patterns of transpose, reshape, broadcast_in_dim, slice, pad, concatenate and reverse.

The canonical form of moving dimensions of size 1 is a reshape; a sequence of moves becomes one op.
"""

from __future__ import annotations

from itertools import pairwise

from xdsl.ir import Operation
from xdsl.pattern_rewriter import PatternRewriter, op_type_rewrite_pattern

from lazytpu.ir.constants import ConstantOp, number_of
from lazytpu.ir.shape import (
    BroadcastInDimOp,
    ConcatenateOp,
    PadOp,
    ReshapeOp,
    ReverseOp,
    SliceOp,
    TransposeOp,
)
from lazytpu.ir.types import dtype_of, ints, numel, shape_of
from lazytpu.passes.patterns.rewriting import Pattern, Table, defined_by, replace


class MoveOfNothing(Pattern):
    """An op that changes neither type nor order -> its operand: transpose by the identity, reshape to the same shape,
    slice of everything, broadcast to the same shape with dims in order, pad by nothing, concatenate of one operand."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        x = op.operands[0]
        if x.type != op.results[0].type:
            return
        match op:
            case TransposeOp():
                same = _increasing(ints(op.permutation))
            case BroadcastInDimOp():
                same = _increasing(ints(op.dims))
            case PadOp():
                same = not any(ints(op.low)) and not any(ints(op.high)) and not any(ints(op.interior))
            case ConcatenateOp():
                same = len(op.operands) == 1
            case ReverseOp():
                shape = shape_of(x)
                same = all(shape[dim] <= 1 for dim in ints(op.dims))
            case _:  # a reshape or slice that keeps the type keeps every element
                same = True
        if same:
            rewriter.replace(op, (), (x,))


class MoveOfSplat(Pattern):
    """Any of these ops on a splat -> a splat."""

    MADE_BY = frozenset((ConstantOp,))

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        constants = [defined_by(x, ConstantOp) for x in op.operands]
        first = constants[0]
        if first is None or any(constant is None or constant.value != first.value for constant in constants):
            return
        value = number_of(first.value)
        result = op.results[0]
        replace(op, rewriter, lambda b: b.constant(value, dtype_of(result), shape_of(result)))


class TransposeTwice(Pattern):
    """transpose(transpose(x, p), q) -> transpose(x, p[q])."""

    MADE_BY = frozenset((TransposeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: TransposeOp, rewriter: PatternRewriter, /) -> None:
        if inner := defined_by(op.operands[0], TransposeOp):
            first = ints(inner.permutation)
            composed = [first[dim] for dim in ints(op.permutation)]
            replace(op, rewriter, lambda b: b.transpose(inner.operands[0], composed))


class TransposeOfUnitDims(Pattern):
    """A transpose that keeps the order of all dimensions larger than 1 -> reshape."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: TransposeOp, rewriter: PatternRewriter, /) -> None:
        x = op.operands[0]
        shape = shape_of(x)
        if _increasing([dim for dim in ints(op.permutation) if shape[dim] != 1]):
            replace(op, rewriter, lambda b: b.reshape(x, shape_of(op.results[0])))


class ReshapeTwice(Pattern):
    """reshape(reshape(x)) -> reshape(x)."""

    MADE_BY = frozenset((ReshapeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReshapeOp, rewriter: PatternRewriter, /) -> None:
        if inner := defined_by(op.operands[0], ReshapeOp):
            replace(op, rewriter, lambda b: b.reshape(inner.operands[0], shape_of(op.results[0])))


class BroadcastTwice(Pattern):
    """broadcast(broadcast(x, d), e) -> broadcast(x, e[d])."""

    MADE_BY = frozenset((BroadcastInDimOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BroadcastInDimOp, rewriter: PatternRewriter, /) -> None:
        if inner := defined_by(op.operands[0], BroadcastInDimOp):
            outer = ints(op.dims)
            dims = [outer[dim] for dim in ints(inner.dims)]
            replace(op, rewriter, lambda b: b.broadcast_in_dim(inner.operands[0], shape_of(op.results[0]), dims))


class BroadcastOfUnitDims(Pattern):
    """broadcast(reshape(x)) -> broadcast(x) if the reshape only adds or drops dimensions of size 1.

    torch's unsqueeze and expand of a vector become one broadcast."""

    MADE_BY = frozenset((ReshapeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BroadcastInDimOp, rewriter: PatternRewriter, /) -> None:
        inner = defined_by(op.operands[0], ReshapeOp)
        if inner is None:
            return
        x = inner.operands[0]
        reshaped, dims = shape_of(inner.results[0]), ints(op.dims)
        long_dims = [dims[i] for i, size in enumerate(reshaped) if size != 1]
        if [size for size in shape_of(x) if size != 1] != [size for size in reshaped if size != 1]:
            return
        result_dims = _result_dims(shape_of(x), long_dims, shape_of(op.results[0]))
        if result_dims is not None:
            replace(op, rewriter, lambda b: b.broadcast_in_dim(x, shape_of(op.results[0]), result_dims))


class BroadcastOfSameSize(Pattern):
    """A broadcast that adds no elements and keeps the order of dimensions -> reshape."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BroadcastInDimOp, rewriter: PatternRewriter, /) -> None:
        x, target = op.operands[0], shape_of(op.results[0])
        shape = shape_of(x)
        moved = [dim for dim, size in zip(ints(op.dims), shape, strict=True) if size != 1]
        if numel(shape) == numel(target) != 0 and _increasing(moved):
            replace(op, rewriter, lambda b: b.reshape(x, target))


class TransposeOfBroadcast(Pattern):
    """transpose(broadcast(x, d), p) -> broadcast(x, d permuted by p), if the new dims are in increasing order."""

    MADE_BY = frozenset((BroadcastInDimOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: TransposeOp, rewriter: PatternRewriter, /) -> None:
        inner = defined_by(op.operands[0], BroadcastInDimOp)
        if inner is None:
            return
        permutation = ints(op.permutation)
        dims = [permutation.index(dim) for dim in ints(inner.dims)]
        if _increasing(dims):
            replace(op, rewriter, lambda b: b.broadcast_in_dim(inner.operands[0], shape_of(op.results[0]), dims))


class SliceTwice(Pattern):
    """slice(slice(x)) -> slice(x)."""

    MADE_BY = frozenset((SliceOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SliceOp, rewriter: PatternRewriter, /) -> None:
        inner = defined_by(op.operands[0], SliceOp)
        if inner is None:
            return
        starts, limits, strides = list[int](), list[int](), list[int]()
        outer = zip(ints(op.starts), ints(op.limits), ints(op.strides), strict=True)
        for first, step, (start, limit, stride) in zip(ints(inner.starts), ints(inner.strides), outer, strict=True):
            count = -((start - limit) // stride)
            starts.append(first + start * step)
            strides.append(step * stride)
            limits.append(starts[-1] + (count - 1) * strides[-1] + 1 if count else starts[-1])
        replace(op, rewriter, lambda b: b.slice(inner.operands[0], starts, limits, strides))


class SliceOfConcatenate(Pattern):
    """slice(concatenate(x, y)) -> slice(y) if the slice lies within one operand."""

    MADE_BY = frozenset((ConcatenateOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SliceOp, rewriter: PatternRewriter, /) -> None:
        inner = defined_by(op.operands[0], ConcatenateOp)
        if inner is None:
            return
        dim = inner.dim.value.data
        starts, limits = list(ints(op.starts)), list(ints(op.limits))
        begin = 0
        for piece in inner.operands:
            end = begin + shape_of(piece)[dim]
            if begin <= starts[dim] and limits[dim] <= end and starts[dim] < limits[dim]:
                starts[dim] -= begin
                limits[dim] -= begin
                replace(op, rewriter, lambda b, piece=piece: b.slice(piece, starts, limits, ints(op.strides)))
                return
            begin = end


class SliceOfPad(Pattern):
    """slice(pad(x, v)) -> slice(x) if the slice contains no padding, and there is no interior padding."""

    MADE_BY = frozenset((PadOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SliceOp, rewriter: PatternRewriter, /) -> None:
        inner = defined_by(op.operands[0], PadOp)
        if inner is None or any(ints(inner.interior)):
            return
        x = inner.operands[0]
        starts = [start - low for start, low in zip(ints(op.starts), ints(inner.low), strict=True)]
        limits = [limit - low for limit, low in zip(ints(op.limits), ints(inner.low), strict=True)]
        inside = (0 <= a < b <= size for a, b, size in zip(starts, limits, shape_of(x), strict=True))
        if all(inside):
            replace(op, rewriter, lambda b: b.slice(x, starts, limits, ints(op.strides)))


class ReverseTwice(Pattern):
    """reverse(reverse(x)) -> x if both reverse the same dimensions."""

    MADE_BY = frozenset((ReverseOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReverseOp, rewriter: PatternRewriter, /) -> None:
        inner = defined_by(op.operands[0], ReverseOp)
        if inner is not None and set(ints(inner.dims)) == set(ints(op.dims)):
            rewriter.replace(op, (), (inner.operands[0],))


def _increasing(values: list[int] | tuple[int, ...]) -> bool:
    return all(a < b for a, b in pairwise(values))


def _result_dims(shape: tuple[int, ...], long_dims: list[int], target: tuple[int, ...]) -> list[int] | None:
    """Return increasing result dims for the dimensions of `shape`, where dimensions larger than 1 go to `long_dims`;
    None if there is no room. A dimension of size 1 may go anywhere, since it is broadcast to any size."""
    if not _increasing(long_dims):
        return None
    result_dims: list[int] = []
    following = iter((*long_dims, len(target)))
    upcoming = next(following)
    for size in shape:
        if size != 1:
            result_dims.append(upcoming)
            upcoming = next(following)
            continue
        dim = result_dims[-1] + 1 if result_dims else 0
        if dim >= upcoming:
            return None
        result_dims.append(dim)
    return result_dims


_nothing, _splat = MoveOfNothing(), MoveOfSplat()

PATTERNS: Table = {
    TransposeOp: (_nothing, _splat, TransposeTwice(), TransposeOfUnitDims(), TransposeOfBroadcast()),
    ReshapeOp: (_nothing, _splat, ReshapeTwice()),
    BroadcastInDimOp: (_nothing, _splat, BroadcastTwice(), BroadcastOfUnitDims(), BroadcastOfSameSize()),
    SliceOp: (_nothing, _splat, SliceTwice(), SliceOfConcatenate(), SliceOfPad()),
    PadOp: (_nothing, _splat),
    ConcatenateOp: (_nothing, _splat),
    ReverseOp: (_nothing, _splat, ReverseTwice()),
}
