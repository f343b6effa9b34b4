"""`split-tokens`: what torch merges for a product of matrices stays apart.

    %0 = lazytpu.reshape %x : [4, 128, 384] -> [512, 384]
    %1 = lazytpu.dot_general %0, %w                           %1 = lazytpu.dot_general %x, %w
    %2 = lazytpu.reshape %1 : [512, 96] -> [4, 128, 96]  ->

torch's linear layers of batches of sequences are products of matrices [batch * length, features]. The TPU's compiler
orders the elements of its values in memory, and can change that order only within the shape that a value has: where
attention wants the positions of one sequence side by side, it moves what [512, 384] came out of by two copies, and
[4, 128, 384] by one or none. Here the reshapes that merge dimensions go behind products, sums, slices and elementwise
ops, as far as a reshape that splits them again, and both go.

Needs: canonical form. Guarantees: the same elements from the same operations; sums and products contract two dimensions
where they contracted the merged one.
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
from lazytpu.passes.patterns import shape as of_shapes
from lazytpu.passes.patterns.broadcasts import ELEMENTWISE
from lazytpu.passes.patterns.contractions import Side, build, sides_of
from lazytpu.passes.patterns.moves import groups
from lazytpu.passes.patterns.rewriting import Pattern, Table, defined_by, replace, splat

SUBLANES = 8
"""The last of the dimensions that are merged has a multiple of this size: rows of a tile of a vector register. Else
the values are padded in each sequence, where the merged ones are padded once."""


@dataclass(frozen=True)
class SplitTokensPass(ModulePass):
    """Reshapes that merge dimensions, behind what can do without them."""

    name = "split-tokens"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(ByClass(TABLE)).rewrite_module(op)
        CsePass().apply(ctx, op)  # what was computed of both shapes: checks of indices, say


@dataclass(frozen=True)
class Merge:
    """A value that is a reshape of `made_of` by way of `shape`: `dims[i]` are the neighbouring dimensions of that shape
    that dimension i of the value holds. More than one they are only where rows are merged, in any but the last."""

    made_of: SSAValue
    shape: Shape
    dims: tuple[tuple[int, ...], ...]

    def source(self, b: Builder) -> SSAValue:
        """The value before the merge."""
        return b.reshape(self.made_of, self.shape)

    def apart(self, merged: Iterable[int]) -> list[int]:
        """The dimensions of the shape that dimensions of the value hold."""
        return [each for dim in merged for each in self.dims[dim]]

    def sizes(self, merged: Iterable[int]) -> list[int]:
        return [self.shape[dim] for dim in self.apart(merged)]


def merge_of(value: SSAValue) -> Merge | None:
    """The merge that made a value; None for what nothing merged."""
    made = defined_by(value, ReshapeOp)
    if made is None:
        return None
    before, after = shape_of(made.operands[0]), shape_of(value)
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
    return Merge(made.operands[0], tuple(shape), tuple(dims)) if len(shape) > len(after) else None


class OfDot(Pattern):
    """Merged dimensions of a product that are free, or contracted with ones that are merged alike."""

    MADE_BY = frozenset((ReshapeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: DotGeneralOp, rewriter: PatternRewriter, /) -> None:
        both = [(side, merge_of(side.value)) for side in sides_of(op)]
        if all(merge is None for _, merge in both):
            return
        left, right = ([_sizes(side, merge, dim) for dim in side.contract] for side, merge in both)
        if left != right or any(len(_sizes(side, merge, dim)) > 1 for side, merge in both for dim in side.batch):
            return

        def make(b: Builder) -> SSAValue:
            lhs, rhs = (_apart(b, side, merge) for side, merge in both)
            return b.reshape(build(b, op, lhs, rhs), shape_of(op.results[0]))

        replace(op, rewriter, make)


def _sizes(side: Side, merge: Merge | None, dim: int) -> list[int]:
    return [shape_of(side.value)[dim]] if merge is None else merge.sizes([dim])


def _apart(b: Builder, side: Side, merge: Merge | None) -> Side:
    if merge is None:
        return side
    return Side(merge.source(b), tuple(merge.apart(side.batch)), tuple(merge.apart(side.contract)))


class OfElementwise(Pattern):
    """An elementwise op of values that are merged alike, and of numbers and rows that are the same before the merge."""

    MADE_BY = frozenset((ReshapeOp,))

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        assert isinstance(op, TensorOp)
        merge = next((each for x in op.operands if (each := merge_of(x)) is not None), None)
        if merge is None:
            return
        before = [_before(x, merge) for x in op.operands]
        if not all(before):
            return

        def build(b: Builder) -> SSAValue:
            operands = [make(b) for make in before if make is not None]
            made = b.op(type(op), operands, (tensor_type(dtype_of(op.results[0]), merge.shape),), op.properties)
            return b.reshape(made.results[0], shape_of(op.results[0]))

        replace(op, rewriter, build)


def _before(x: SSAValue, merge: Merge) -> Callable[[Builder], SSAValue] | None:
    """What makes an operand of the shape before the merge; None where that takes another reshape."""
    if shape_of(x) == ():
        return lambda b: x
    own = merge_of(x)
    if own is not None:
        return own.source if own.shape == merge.shape and own.dims == merge.dims else None
    number = splat(x)
    if number is not None:
        return lambda b: b.constant(number, dtype_of(x), merge.shape)
    repeated = defined_by(x, BroadcastInDimOp)
    if repeated is None:
        return None
    row, places = repeated.operands[0], ints(repeated.dims)
    if shape_of(row) != tuple(shape_of(x)[place] for place in places):
        return None
    apart = merge.apart(places)
    return lambda b: b.broadcast_in_dim(b.reshape(row, merge.sizes(places)), merge.shape, apart)


class OfReduce(Pattern):
    """A reduction of merged dimensions, or of others."""

    MADE_BY = frozenset((ReshapeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReduceOp, rewriter: PatternRewriter, /) -> None:
        merge = merge_of(op.operands[0])
        if merge is not None:
            dims, result = merge.apart(ints(op.dims)), shape_of(op.results[0])
            replace(op, rewriter, lambda b: b.reshape(b.reduce(op.kind.data, merge.source(b), dims), result))


class OfSlice(Pattern):
    """A slice that takes the whole of what is merged."""

    MADE_BY = frozenset((ReshapeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SliceOp, rewriter: PatternRewriter, /) -> None:
        merge, shape = merge_of(op.operands[0]), shape_of(op.operands[0])
        if merge is None:
            return
        starts, limits, strides = [0] * len(merge.shape), list(merge.shape), [1] * len(merge.shape)
        cuts = zip(merge.dims, shape, ints(op.starts), ints(op.limits), ints(op.strides), strict=True)
        for of, size, start, limit, stride in cuts:
            if len(of) == 1:
                starts[of[0]], limits[of[0]], strides[of[0]] = start, limit, stride
            elif (start, limit, stride) != (0, size, 1):
                return

        def build(b: Builder) -> SSAValue:
            return b.reshape(b.slice(merge.source(b), starts, limits, strides), shape_of(op.results[0]))

        replace(op, rewriter, build)


class OfConcatenate(Pattern):
    """A concatenation, along one that is not merged, of values that are merged alike."""

    MADE_BY = frozenset((ReshapeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ConcatenateOp, rewriter: PatternRewriter, /) -> None:
        merges = [merge for x in op.operands if (merge := merge_of(x)) is not None]
        dim = integer(op.dim)
        if len(merges) < len(op.operands) or len(merges[0].dims[dim]) > 1:
            return
        (along,) = merges[0].dims[dim]
        others = {(each.dims, *(size for i, size in enumerate(each.shape) if i != along)) for each in merges}
        if len(others) > 1:
            return

        def build(b: Builder) -> SSAValue:
            return b.reshape(b.concatenate([each.source(b) for each in merges], along), shape_of(op.results[0]))

        replace(op, rewriter, build)


_elementwise = OfElementwise()

TABLE: Table = {
    **dict.fromkeys(ELEMENTWISE, (_elementwise,)),
    DotGeneralOp: (OfDot(),),
    ReduceOp: (OfReduce(),),
    SliceOp: (OfSlice(),),
    ConcatenateOp: (OfConcatenate(),),
    ReshapeOp: of_shapes.PATTERNS[ReshapeOp],
}
