"""Hands a stack over whole: the rows that a program concatenates again are a slice of the stack.

    %0 = lazytpu.slice %stack starts = [0, 0] limits = [1, 8]
    %1 = lazytpu.slice %stack starts = [1, 0] limits = [2, 8]
    …                                                            ->     %9 = %stack
    %9 = lazytpu.concatenate %0, %1, … dim = 0

The rows may come in the opposite order, have been reshaped, be concatenated along any dimension, and have others before
and after them. That is `torch.stack` and `torch.cat` of what a Python loop put into a list.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xdsl.ir import Block, SSAValue

from lazytpu.ir.base import integer
from lazytpu.ir.builder import Builder
from lazytpu.ir.shape import ConcatenateOp, ReshapeOp, SliceOp
from lazytpu.ir.types import ints, shape_of


def hand_over(block: Block, stacks: Collection[SSAValue]) -> None:
    """Let the concatenations of a block read whole stacks."""
    for op in list(block.ops):
        if isinstance(op, ConcatenateOp):
            _concatenate(block, op, stacks)


def _concatenate(block: Block, op: ConcatenateOp, stacks: Collection[SSAValue]) -> None:
    dim, b = integer(op.dim), Builder(block, op)
    b.location = op.location
    parts: list[SSAValue] = []
    for values in _runs(op.operands, stacks):
        parts += values if len(values) == 1 else [_part(b, values, dim, stacks)]
    if len(parts) < len(op.operands):
        op.result.replace_all_uses_with(b.concatenate(parts, dim))
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
    """(the stack, the number of the row) that a value is, in any shape."""
    while isinstance(value.owner, ReshapeOp):
        value = value.owner.operand
    part = value.owner
    if not isinstance(part, SliceOp) or part.operand not in stacks:
        return None
    starts, limits = ints(part.starts), ints(part.limits)
    whole = (1, *shape_of(part.operand)[1:])
    row = starts[0]
    is_row = shape_of(part.result) == whole and limits[0] == row + 1
    return (part.operand, row) if is_row else None


def _part(b: Builder, values: Sequence[SSAValue], dim: int, stacks: Collection[SSAValue]) -> SSAValue:
    """Rows of a stack, concatenated along `dim`."""
    (stack, first), (_, last) = (_row_of(value, stacks) or (values[0], 0) for value in (values[0], values[-1]))
    low, high, rest = min(first, last), max(first, last), shape_of(stack)[1:]
    rows = b.slice(stack, [low, *(0 for _ in rest)], [high + 1, *rest])
    if first > last:
        rows = b.reverse(rows, [0])
    shape = shape_of(values[0])
    rows = b.reshape(rows, (len(values), *shape))
    order = [*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1)]
    return b.reshape(b.transpose(rows, order), (*shape[:dim], len(values) * shape[dim], *shape[dim + 1 :]))
