"""Removes the concatenation of a stack's own rows: it is a slice of the stack.

    %0 = lazytpu.slice %stack starts = [0, 0] limits = [1, 8]
    %1 = lazytpu.slice %stack starts = [1, 0] limits = [2, 8]
    …                                                            ->     %9 = %stack
    %9 = lazytpu.concatenate %0, %1, … dim = 0

The rows may come in the opposite order, be reshaped, be concatenated along any dimension, and have other operands
before and after them. This covers `torch.stack` and `torch.cat` of a list that a Python loop filled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xdsl.ir import Block, SSAValue

from lazytpu.ir.base import integer
from lazytpu.ir.builder import Builder
from lazytpu.ir.shape import ConcatenateOp, ReshapeOp, SliceOp
from lazytpu.ir.types import ints, shape_of


def hand_over(block: Block, stacks: Collection[SSAValue]) -> None:
    """Replace concatenations of rows in a block by uses of whole stacks."""
    for op in list(block.ops):
        if isinstance(op, ConcatenateOp):
            _concatenate(block, op, stacks)


def _concatenate(block: Block, op: ConcatenateOp, stacks: Collection[SSAValue]) -> None:
    dim, b = integer(op.dim), Builder(block, op)
    b.location = op.location
    pieces: list[SSAValue] = []
    for values in _runs(op.operands, stacks):
        pieces += values if len(values) == 1 else [_part(b, values, dim, stacks)]
    if len(pieces) < len(op.operands):
        op.result.replace_all_uses_with(b.concatenate(pieces, dim))
        block.erase_op(op)


def _runs(values: Sequence[SSAValue], stacks: Collection[SSAValue]) -> list[list[SSAValue]]:
    """The values in groups, each of one value or of consecutive rows of one stack."""
    groups: list[list[SSAValue]] = []
    step, previous = 0, None
    for value in values:
        row = _row_of(value, stacks)
        if row is not None and previous is not None and row[0] is previous[0] and value.type == groups[-1][-1].type:
            distance = row[1] - previous[1]
            if abs(distance) == 1 and (distance == step or len(groups[-1]) == 1):
                groups[-1].append(value)
                step, previous = distance, row
                continue
        groups.append([value])
        previous = row
    return groups


def _row_of(value: SSAValue, stacks: Collection[SSAValue]) -> tuple[SSAValue, int] | None:
    """Return (the stack, the number of the row) of a value that is a row of a stack, in any shape."""
    while isinstance(value.owner, ReshapeOp):
        value = value.owner.operand
    cut = value.owner
    if not isinstance(cut, SliceOp) or cut.operand not in stacks:
        return None
    starts, limits = ints(cut.starts), ints(cut.limits)
    row_shape = (1, *shape_of(cut.operand)[1:])
    row = starts[0]
    is_row = shape_of(cut.result) == row_shape and limits[0] == row + 1
    return (cut.operand, row) if is_row else None


def _part(b: Builder, values: Sequence[SSAValue], dim: int, stacks: Collection[SSAValue]) -> SSAValue:
    """Return rows of a stack, concatenated along `dim`."""
    (stack, first), (_, last) = (_row_of(value, stacks) or (values[0], 0) for value in (values[0], values[-1]))
    low, high, row = min(first, last), max(first, last), shape_of(stack)[1:]
    rows = b.slice(stack, [low, *(0 for _ in row)], [high + 1, *row])
    if first > last:
        rows = b.reverse(rows, [0])
    shape = shape_of(values[0])
    rows = b.reshape(rows, (len(values), *shape))
    order = [*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1)]
    return b.reshape(b.transpose(rows, order), (*shape[:dim], len(values) * shape[dim], *shape[dim + 1 :]))
