"""Patterns of dynamic_slice and dynamic_update_slice at constant starts, and of slices that read back an update.

An in-place write through a view is a dynamic_update_slice, and the next read of that view is a slice of its result."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue
from xdsl.pattern_rewriter import PatternRewriter, op_type_rewrite_pattern

from lazytpu.ir.constants import ConstantOp, IotaOp
from lazytpu.ir.indexing import DynamicSliceOp, DynamicUpdateSliceOp
from lazytpu.ir.pointwise import CompareOp, ConvertOp
from lazytpu.ir.shape import SliceOp
from lazytpu.ir.types import BOOL, FLOATS8, Shape, bitwidth, dtype_of, ints, is_integer, is_unsigned, shape_of
from lazytpu.passes.patterns.conversions import FLOAT_FORMAT
from lazytpu.passes.patterns.rewriting import Pattern, Table, defined_by, replace, splat


def constant_starts(starts: Sequence[SSAValue], operand: Shape, sizes: Shape) -> tuple[int, ...] | None:
    """The constant starts of a slice, clamped into bounds as the op does; None if one is not a constant."""
    clamped: list[int] = []
    for start, size, slice_size in zip(starts, operand, sizes, strict=True):
        number = splat(start)
        if not isinstance(number, int):
            return None
        clamped.append(min(max(number, 0), size - slice_size))
    return tuple(clamped)


class DynamicSliceAtConstant(Pattern):
    """dynamic_slice(x, constants) -> slice(x)."""

    MADE_BY = frozenset((ConstantOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: DynamicSliceOp, rewriter: PatternRewriter, /) -> None:
        x, sizes = op.operands[0], ints(op.sizes)
        starts = constant_starts(op.operands[1:], shape_of(x), sizes)
        if starts is not None:
            limits = [start + size for start, size in zip(starts, sizes, strict=True)]
            replace(op, rewriter, lambda b: b.slice(x, starts, limits))


class UpdateOfWhole(Pattern):
    """dynamic_update_slice(x, u) -> u if u has the shape of x: clamping makes every start 0."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: DynamicUpdateSliceOp, rewriter: PatternRewriter, /) -> None:
        if op.operands[0].type == op.operands[1].type:
            rewriter.replace(op, (), (op.operands[1],))


class UpdateTwice(Pattern):
    """Two successive dynamic_update_slices of the same shape at the same starts -> the second one."""

    MADE_BY = frozenset((DynamicUpdateSliceOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: DynamicUpdateSliceOp, rewriter: PatternRewriter, /) -> None:
        inner = defined_by(op.operands[0], DynamicUpdateSliceOp)
        if inner is None:
            return
        update, starts = op.operands[1], op.operands[2:]
        same_starts = tuple(starts) == tuple(inner.operands[2:])
        if same_starts and update.type == inner.operands[1].type:
            replace(op, rewriter, lambda b: b.dynamic_update_slice(inner.operands[0], update, starts))


class SliceOfUpdate(Pattern):
    """A slice inside the updated region -> a slice of the update; a slice outside of it -> a slice of the original.

    A chain of updates is passed in one step: a loop that writes each row and then reads each row has as many slices as
    updates."""

    MADE_BY = frozenset((DynamicUpdateSliceOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SliceOp, rewriter: PatternRewriter, /) -> None:
        x = op.operands[0]
        starts: Sequence[int] = ints(op.starts)
        limits: Sequence[int] = ints(op.limits)
        strides = ints(op.strides)
        if any(a == b for a, b in zip(starts, limits, strict=True)):
            return
        while (inner := defined_by(x, DynamicUpdateSliceOp)) is not None:
            update = inner.operands[1]
            written = constant_starts(inner.operands[2:], shape_of(x), shape_of(update))
            if written is None:
                break
            ends = [begin + size for begin, size in zip(written, shape_of(update), strict=True)]
            spans: list[tuple[int, int, int, int]] = list(zip(starts, limits, written, ends, strict=True))
            if all(begin <= start and limit <= end for start, limit, begin, end in spans):
                x = update
                inner_starts: list[int] = [start - begin for start, _, begin, _ in spans]
                inner_limits: list[int] = [limit - begin for _, limit, begin, _ in spans]
                starts, limits = inner_starts, inner_limits
            elif any(limit <= begin or end <= start for start, limit, begin, end in spans):
                x = inner.operands[0]
            else:
                break
        if x is not op.operands[0]:
            replace(op, rewriter, lambda b: b.slice(x, starts, limits, strides))


class IotaOfOne(Pattern):
    """iota along a dimension of size 1 -> 0."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: IotaOp, rewriter: PatternRewriter, /) -> None:
        result = op.results[0]
        shape = shape_of(result)
        if shape[op.dim.value.data] == 1:
            replace(op, rewriter, lambda b: b.constant(0, dtype_of(result), shape))


class ConvertOfIota(Pattern):
    """convert(iota) -> iota of the other dtype, if both dtypes represent all indices exactly."""

    MADE_BY = frozenset((IotaOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ConvertOp, rewriter: PatternRewriter, /) -> None:
        inner, result = defined_by(op.operands[0], IotaOp), op.results[0]
        if inner is None or dtype_of(result) in BOOL | FLOATS8:  # iota does not have these dtypes
            return
        last = _last_index(inner)
        if last <= exactly_up_to(dtype_of(inner.results[0])) and last <= exactly_up_to(dtype_of(result)):
            dim = inner.dim.value.data
            replace(op, rewriter, lambda b: b.iota(dtype_of(result), shape_of(result), dim))


class CompareOfIota(Pattern):
    """iota compared with a number below or above all of its indices -> a constant.

    This removes the bounds checks of positions that come from an iota."""

    MADE_BY = frozenset((IotaOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: CompareOp, rewriter: PatternRewriter, /) -> None:
        inner, number = defined_by(op.operands[0], IotaOp), splat(op.operands[1])
        if inner is None or not isinstance(number, int) or 0 in shape_of(op.results[0]):
            return
        last = _last_index(inner)
        if last > exactly_up_to(dtype_of(inner.results[0])):
            return
        holds = HOLDS[op.direction.data]
        first_holds, last_holds = holds(0, number), holds(last, number)
        between = op.direction.data in ("EQ", "NE") and 0 <= number <= last and last > 0
        if first_holds == last_holds and not between:
            replace(op, rewriter, lambda b: b.constant(first_holds, "i1", shape_of(op.results[0])))


HOLDS: dict[str, Callable[[int, int], bool]] = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}


def _last_index(iota: IotaOp) -> int:
    return shape_of(iota.results[0])[iota.dim.value.data] - 1


def exactly_up_to(dtype: str) -> int:
    """The largest n such that a dtype represents 0..n exactly; -1 for i1 and complex dtypes, where it is not used."""
    if dtype in FLOAT_FORMAT:
        return 2 ** FLOAT_FORMAT[dtype][0]
    return 2 ** (bitwidth(dtype) - (not is_unsigned(dtype))) - 1 if is_integer(dtype) else -1


PATTERNS: Table = {
    DynamicSliceOp: (DynamicSliceAtConstant(),),
    DynamicUpdateSliceOp: (UpdateOfWhole(), UpdateTwice()),
    SliceOp: (SliceOfUpdate(),),
    IotaOp: (IotaOfOne(),),
    ConvertOp: (ConvertOfIota(),),
    CompareOp: (CompareOfIota(),),
}
