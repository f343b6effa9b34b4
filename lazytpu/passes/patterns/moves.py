"""Patterns that move transposes past reshapes and scales, toward the ops that fold them into dimension numbers.

autograd's `g.t() @ x` of a batch g[B, T, N] is recorded as a transpose, a reshape that merges B and T again, and the
product. With the reshape first, the transpose is one of two dimensions, and the product contracts g's first dimension
as stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, op_type_rewrite_pattern

from lazytpu.ir.base import TensorOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp
from lazytpu.ir.shape import BroadcastInDimOp, ReshapeOp, TransposeOp
from lazytpu.ir.types import Shape, dtype_of, ints, shape_of, tensor_type
from lazytpu.passes.patterns.broadcasts import ELEMENTWISE
from lazytpu.passes.patterns.rewriting import Pattern, Table, defined_by, replace, splat


@dataclass(frozen=True)
class DimGroup:
    """Dimensions of the operand of a reshape, and the dimensions of its result that hold the same elements."""

    source: list[int] = field(default_factory=list[int])
    result: list[int] = field(default_factory=list[int])


def groups(sizes: list[tuple[int, int]], result: Shape) -> list[DimGroup]:
    """The smallest groups of a reshape from dimensions `sizes` (number, size), none of size 1, to the shape `result`.

    A result dimension of size 1 belongs to the group before it, or to the first one if there is none."""
    pending = list(sizes)
    complete: list[DimGroup] = []
    group, left, right = DimGroup(), 1, 1
    for dim, size in enumerate(result):
        group.result.append(dim)
        right *= size
        while left < right:
            source, source_size = pending.pop(0)
            group.source.append(source)
            left *= source_size
        if left == right and group.source:
            complete.append(group)
            group, left, right = DimGroup(), 1, 1
        elif size == 1 and complete and not group.source:
            complete[-1].result.append(group.result.pop())
    return complete


class ReshapeOfTranspose(Pattern):
    """reshape(transpose(x)) -> transpose(reshape(x)) if the reshape merges or splits dimensions that are adjacent in x
    already, so that the transpose only moves blocks.

    Also if another transpose of x orders the blocks by their last dimension: then one of the two reshapes becomes the
    transpose of the other, and the elements are moved only once."""

    MADE_BY = frozenset((TransposeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReshapeOp, rewriter: PatternRewriter, /) -> None:
        moved = defined_by(op.operands[0], TransposeOp)
        if moved is None:
            return
        x, permutation = moved.operands[0], ints(moved.permutation)
        shape, result = shape_of(x), shape_of(op.results[0])
        sizes = [(dim, shape[dim]) for dim in permutation if shape[dim] != 1]
        if 0 in shape or not sizes:
            return
        blocks = groups(sizes, result)
        ordered = sorted(blocks, key=lambda block: max(block.source))
        order = [dim for block in ordered for dim in block.source]
        if ordered == blocks or not (_stays_once(moved, order) or _is_shared(moved, order)):
            return
        sorted_result = [dim for block in ordered for dim in block.result]

        def build(b: Builder) -> SSAValue:
            source = x if order == sorted(order) else b.transpose(x, order)
            reshaped = b.reshape(source, [result[dim] for dim in sorted_result])
            return b.transpose(reshaped, [sorted_result.index(dim) for dim in range(len(result))])

        replace(op, rewriter, build)


def _stays_once(moved: TransposeOp, order: list[int]) -> bool:
    """Whether the transpose has no other user, and x need not be transposed before the reshape."""
    return order == sorted(order) and moved.results[0].has_one_use()


def _is_shared(moved: TransposeOp, order: list[int]) -> bool:
    """Whether x is also transposed to this order."""
    users = (use.operation for use in moved.operands[0].uses)
    return any(isinstance(user, TransposeOp) and list(ints(user.permutation)) == order for user in users)


class ElementwiseOfMoved(Pattern):
    """mul(transpose(x), s) -> transpose(mul(x, s)) for a number s, and mul(transpose(x), transpose(y)) ->
    transpose(mul(x, y)) for equal permutations; likewise for reshapes that add dimensions of size 1.

    A transpose must have no other user, or it would be computed twice."""

    MADE_BY = frozenset(
        (
            TransposeOp,
            ReshapeOp,
        )
    )

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        assert isinstance(op, TensorOp)
        operands = tuple(op.operands)
        moves = [move for x in operands if (move := _move(x, op))]
        if not moves or any(not _follows(x, moves[0], op) for x in operands):
            return
        first = moves[0]
        source = shape_of(first.operands[0])

        def build(b: Builder) -> SSAValue:
            result = tensor_type(dtype_of(op.results[0]), source)
            unmoved = [_unmoved(b, x, source) for x in operands]
            value = b.op(type(op), unmoved, (result,), op.properties).results[0]
            if isinstance(first, TransposeOp):
                return b.transpose(value, ints(first.permutation))
            return b.reshape(value, shape_of(first.results[0]))

        replace(op, rewriter, build)


def _move(x: SSAValue, user: Operation) -> TransposeOp | ReshapeOp | None:
    """The op that defines x, if it is a transpose used only by `user`, or a reshape that adds dimensions of size 1."""
    if moved := defined_by(x, TransposeOp):
        return moved if all(use.operation is user for use in x.uses) else None
    reshaped = defined_by(x, ReshapeOp)
    if reshaped is None:
        return None
    before, after = shape_of(reshaped.operands[0]), shape_of(x)
    unit = [size for size in before if size != 1] == [size for size in after if size != 1]
    return reshaped if unit and len(before) < len(after) else None


def _follows(x: SSAValue, first: TransposeOp | ReshapeOp, user: Operation) -> bool:
    """Whether x is moved like the operand of `first`, or is invariant under any move."""
    if shape_of(x) == () or isinstance(x.owner, ConstantOp):
        return True
    if repeated := defined_by(x, BroadcastInDimOp):
        return shape_of(repeated.operands[0]) == ()
    moved = _move(x, user)
    if moved is None or type(moved) is not type(first):
        return False
    return shape_of(moved.operands[0]) == shape_of(first.operands[0]) and moved.properties == first.properties


def _unmoved(b: Builder, x: SSAValue, shape: Shape) -> SSAValue:
    """x before its move, or an invariant x in the shape before the move."""
    if shape_of(x) == ():
        return x
    number = splat(x)
    if number is not None:
        return b.constant(number, dtype_of(x), shape)
    moved = x.owner
    assert isinstance(moved, Operation)
    return (
        b.broadcast_in_dim(moved.operands[0], shape, ()) if isinstance(moved, BroadcastInDimOp) else moved.operands[0]
    )


_moved = ElementwiseOfMoved()

PATTERNS: Table = {ReshapeOp: (ReshapeOfTranspose(),), **dict.fromkeys(ELEMENTWISE, (_moved,))}
