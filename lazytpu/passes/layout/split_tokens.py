"""`split-tokens`: keep separate the batch and sequence dimensions that torch merges for matrix products.

    %0 = lazytpu.reshape %x : [4, 128, 384] -> [512, 384]
    %1 = lazytpu.dot_general %0, %w                           %1 = lazytpu.dot_general %x, %w
    %2 = lazytpu.reshape %1 : [512, 96] -> [4, 128, 96]  ->

torch's linear layers on batches of sequences are products of matrices [batch * length, features]. The TPU compiler
chooses the layout of a value only within its shape: where attention needs the positions of one sequence side by side,
it takes two copies to get there from [512, 384], and one or none from [4, 128, 384]. This pass sinks the reshapes that
merge dimensions below products, reductions, slices and elementwise ops, until they meet a reshape that splits the
dimensions again, and both cancel.

Needs: canonical form. Guarantees: the same elements from the same operations; reductions and products contract two
dimensions in place of the merged one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, op_type_rewrite_pattern

from lazytpu.ir.base import TensorOp, integer
from lazytpu.ir.builder import Builder
from lazytpu.ir.contractions import DotGeneralOp
from lazytpu.ir.reductions import ReduceOp
from lazytpu.ir.shape import BroadcastInDimOp, ConcatenateOp, ReshapeOp, SliceOp
from lazytpu.ir.types import Shape, dtype_of, ints, shape_of, tensor_type
from lazytpu.passes.canonicalize import ByClass
from lazytpu.passes.cse import CsePass
from lazytpu.passes.patterns import shape as shape_patterns
from lazytpu.passes.patterns.broadcasts import ELEMENTWISE
from lazytpu.passes.patterns.contractions import Side, build, sides_of
from lazytpu.passes.patterns.moves import groups
from lazytpu.passes.patterns.rewriting import Pattern, Table, defined_by, replace, splat

SUBLANES = 8
"""Rows of a tile. The last merged dimension must be a multiple of them: otherwise the split value is padded in each
sequence, where the merged one is padded once."""


@dataclass(frozen=True)
class SplitTokensPass(ModulePass):
    """Sinks reshapes that merge dimensions below the ops that work on split dimensions."""

    name = "split-tokens"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(ByClass(TABLE)).rewrite_module(op)
        CsePass().apply(ctx, op)  # merges ops that were computed in both shapes, such as index checks


@dataclass(frozen=True)
class Merge:
    """A value that merges dimensions of a reshape of `operand` to `shape`: `dims[i]` are the adjacent dimensions of
    `shape` that dimension i of the value merges. Only rows are merged, so the last dimension never is, unless it is the
    only one."""

    operand: SSAValue
    shape: Shape
    dims: tuple[tuple[int, ...], ...]

    def source(self, b: Builder) -> SSAValue:
        """The value before the merge."""
        return b.reshape(self.operand, self.shape)

    def split(self, merged: Iterable[int]) -> list[int]:
        """The dimensions of `shape` for dimensions of the value."""
        return [split_dim for dim in merged for split_dim in self.dims[dim]]

    def sizes(self, merged: Iterable[int]) -> list[int]:
        return [self.shape[dim] for dim in self.split(merged)]


def merge_of(value: SSAValue) -> Merge | None:
    """The merge that a value is the result of; None if it is not a reshape that merges rows."""
    reshape = defined_by(value, ReshapeOp)
    if reshape is None:
        return None
    before, after = shape_of(reshape.operands[0]), shape_of(value)
    if any(size <= 1 for size in (*before, *after)):
        return None
    shape: list[int] = []
    dims: list[tuple[int, ...]] = []
    for group in groups(list(enumerate(before)), after):
        rows = len(group.result) == 1 and (len(after) == 1 or group.result[0] < len(after) - 1)
        if rows and len(group.source) > 1 and before[group.source[-1]] % SUBLANES == 0:
            dims.append(tuple(range(len(shape), len(shape) + len(group.source))))
            shape += [before[dim] for dim in group.source]
        else:
            dims += [(len(shape) + i,) for i in range(len(group.result))]
            shape += [after[dim] for dim in group.result]
    return Merge(reshape.operands[0], tuple(shape), tuple(dims)) if len(shape) > len(after) else None


class SplitDot(Pattern):
    """A product whose merged dimensions are free, or contracted with dimensions that are merged alike."""

    MADE_BY = frozenset((ReshapeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: DotGeneralOp, rewriter: PatternRewriter, /) -> None:
        sides = [(side, merge_of(side.value)) for side in sides_of(op)]
        if all(merge is None for _, merge in sides):
            return
        left, right = ([_sizes(side, merge, dim) for dim in side.contract] for side, merge in sides)
        if left != right or any(len(_sizes(side, merge, dim)) > 1 for side, merge in sides for dim in side.batch):
            return

        def make(b: Builder) -> SSAValue:
            lhs, rhs = (_split(b, side, merge) for side, merge in sides)
            return b.reshape(build(b, op, lhs, rhs), shape_of(op.results[0]))

        replace(op, rewriter, make)


def _sizes(side: Side, merge: Merge | None, dim: int) -> list[int]:
    return [shape_of(side.value)[dim]] if merge is None else merge.sizes([dim])


def _split(b: Builder, side: Side, merge: Merge | None) -> Side:
    if merge is None:
        return side
    return Side(merge.source(b), tuple(merge.split(side.batch)), tuple(merge.split(side.contract)))


class SplitElementwise(Pattern):
    """An elementwise op on values that are merged alike, and on numbers and rows broadcast to their shape."""

    MADE_BY = frozenset((ReshapeOp,))

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        assert isinstance(op, TensorOp)
        merge = next((candidate for x in op.operands if (candidate := merge_of(x)) is not None), None)
        if merge is None:
            return
        before = [_before(x, merge) for x in op.operands]
        if not all(before):
            return

        def build(b: Builder) -> SSAValue:
            operands = [make(b) for make in before if make is not None]
            split = b.op(type(op), operands, (tensor_type(dtype_of(op.results[0]), merge.shape),), op.properties)
            return b.reshape(split.results[0], shape_of(op.results[0]))

        replace(op, rewriter, build)


def _before(x: SSAValue, merge: Merge) -> Callable[[Builder], SSAValue] | None:
    """Return a function that builds an operand in the shape before the merge; None if that would need another
    reshape."""
    if shape_of(x) == ():
        return lambda b: x
    own_merge = merge_of(x)
    if own_merge is not None:
        return own_merge.source if own_merge.shape == merge.shape and own_merge.dims == merge.dims else None
    number = splat(x)
    if number is not None:
        return lambda b: b.constant(number, dtype_of(x), merge.shape)
    repeated = defined_by(x, BroadcastInDimOp)
    if repeated is None:
        return None
    row, dims = repeated.operands[0], ints(repeated.dims)
    if shape_of(row) != tuple(shape_of(x)[dim] for dim in dims):
        return None
    split_dims = merge.split(dims)
    return lambda b: b.broadcast_in_dim(b.reshape(row, merge.sizes(dims)), merge.shape, split_dims)


class SplitReduce(Pattern):
    """A reduction of a merged value, over merged or other dimensions."""

    MADE_BY = frozenset((ReshapeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReduceOp, rewriter: PatternRewriter, /) -> None:
        merge = merge_of(op.operands[0])
        if merge is not None:
            dims, result = merge.split(ints(op.dims)), shape_of(op.results[0])
            replace(op, rewriter, lambda b: b.reshape(b.reduce(op.kind.data, merge.source(b), dims), result))


class SplitSlice(Pattern):
    """A slice that keeps all of the merged dimensions."""

    MADE_BY = frozenset((ReshapeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SliceOp, rewriter: PatternRewriter, /) -> None:
        merge, shape = merge_of(op.operands[0]), shape_of(op.operands[0])
        if merge is None:
            return
        starts, limits, strides = [0] * len(merge.shape), list(merge.shape), [1] * len(merge.shape)
        cuts = zip(merge.dims, shape, ints(op.starts), ints(op.limits), ints(op.strides), strict=True)
        for dims, size, start, limit, stride in cuts:
            if len(dims) == 1:
                starts[dims[0]], limits[dims[0]], strides[dims[0]] = start, limit, stride
            elif (start, limit, stride) != (0, size, 1):
                return

        def build(b: Builder) -> SSAValue:
            return b.reshape(b.slice(merge.source(b), starts, limits, strides), shape_of(op.results[0]))

        replace(op, rewriter, build)


class SplitConcatenate(Pattern):
    """A concatenation of values that are merged alike, along a dimension that is not merged."""

    MADE_BY = frozenset((ReshapeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ConcatenateOp, rewriter: PatternRewriter, /) -> None:
        merges = [merge for x in op.operands if (merge := merge_of(x)) is not None]
        dim = integer(op.dim)
        if len(merges) < len(op.operands) or len(merges[0].dims[dim]) > 1:
            return
        (along,) = merges[0].dims[dim]
        layouts = {(merge.dims, *(size for i, size in enumerate(merge.shape) if i != along)) for merge in merges}
        if len(layouts) > 1:
            return

        def build(b: Builder) -> SSAValue:
            return b.reshape(b.concatenate([merge.source(b) for merge in merges], along), shape_of(op.results[0]))

        replace(op, rewriter, build)


_elementwise = SplitElementwise()

TABLE: Table = {
    **dict.fromkeys(ELEMENTWISE, (_elementwise,)),
    DotGeneralOp: (SplitDot(),),
    ReduceOp: (SplitReduce(),),
    SliceOp: (SplitSlice(),),
    ConcatenateOp: (SplitConcatenate(),),
    ReshapeOp: shape_patterns.PATTERNS[ReshapeOp],
}
