"""Patterns of rows that are read from, and written to, a part of a large value, such as one layer of a cache.

A view of a part is a slice. A write through it is a slice, a scatter and an update. Without these patterns, the part is
copied there and back: a step that writes a few rows of a cache of gigabytes moves all of it.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from xdsl.ir import Attribute, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from lazytpu.ir.builder import Builder
from lazytpu.ir.indexing import DynamicUpdateSliceOp, GatherOp, ScatterOp
from lazytpu.ir.shape import ReshapeOp, SliceOp
from lazytpu.ir.types import Shape, dtype_of, ints, shape_of, type_of
from lazytpu.passes.patterns.indexing import constant_starts
from lazytpu.passes.patterns.rewriting import Pattern, RewriteBuilder, Table, defined_by, replace

INDICES = ("i32", "i64")


class _Part(NamedTuple):
    """A value with `rows` rows that is a part of `whole`. `shape` is the shape of all rows of the whole, and `first`
    the number of the part's first row. `slice` cuts it out."""

    whole: SSAValue
    shape: Shape
    first: int
    rows: int
    slice: SliceOp


def _part(value: SSAValue) -> _Part | None:
    """Return the part that a value is, if its rows are rows of a slice of the first dimension."""
    reshaped = defined_by(value, ReshapeOp)
    cut = defined_by(value if reshaped is None else reshaped.operands[0], SliceOp)
    shape = shape_of(value)
    if cut is None or not shape or 0 in shape:
        return None
    whole_shape, row = shape_of(cut.operands[0]), prod(shape[1:])
    starts, limits = ints(cut.starts), ints(cut.limits)
    if set(ints(cut.strides)) != {1} or any(starts[1:]) or tuple(limits[1:]) != whole_shape[1:]:
        return None
    first, offset = divmod(starts[0] * prod(whole_shape[1:]), row)
    count, remainder = divmod(prod(whole_shape), row)
    return None if offset or remainder else _Part(cut.operands[0], (count, *shape[1:]), first, shape[0], cut)


class ScatterInPart(Pattern):
    """update(x, scatter(slice(x), i, u)) -> scatter(x, i + first row of the slice, u). Later reads of the part become
    reads of a slice of the result."""

    MADE_BY = frozenset((ReshapeOp, ScatterOp))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: DynamicUpdateSliceOp, rewriter: PatternRewriter, /) -> None:
        x, update = op.operands[0], op.operands[1]
        reshaped = defined_by(update, ReshapeOp)
        scatter = defined_by(update if reshaped is None else reshaped.operands[0], ScatterOp)
        part = None if scatter is None else _part(scatter.operands[0])
        if scatter is None or part is None or part.whole is not x or scatter.parent is not op.parent:
            return
        if update.type != part.slice.results[0].type or not _scatters_rows(scatter):
            return
        if constant_starts(op.operands[2:], shape_of(x), shape_of(update)) != tuple(ints(part.slice.starts)):
            return
        b = _before(scatter, rewriter)
        indices = _moved(b, scatter.operands[1], part)
        rows = b.reshape(x, part.shape)
        written = b.one(ScatterOp, (rows, indices, scatter.operands[2]), type_of(rows), scatter.properties)
        limits = (part.first + part.rows, *part.shape[1:])
        again = b.slice(written, (part.first, *[0] * (len(limits) - 1)), limits)
        updated = b.reshape(written, shape_of(x))
        rewriter.replace(scatter, (), (again,))
        rewriter.replace(op, (), (updated,))


def _before(scatter: ScatterOp, rewriter: PatternRewriter) -> Builder:
    """Return a builder in front of a scatter, whose result other ops may read before the matched op."""
    rewriter.insertion_point = InsertPoint.before(scatter)
    return RewriteBuilder(scatter, rewriter)


def _moved(b: Builder, indices: SSAValue, part: _Part) -> SSAValue:
    """Convert indices of rows of the part to rows of the whole. Indices out of the part's bounds become out of the
    whole's bounds."""
    dtype, shape = dtype_of(indices), shape_of(indices)
    inside = b.binary(
        "and",
        b.compare("GE", indices, b.constant(0, dtype, shape)),
        b.compare("LT", indices, b.constant(part.rows, dtype, shape)),
    )
    moved = b.add(indices, b.constant(part.first, dtype, shape))
    return b.select(inside, moved, b.constant(part.shape[0], dtype, shape))


def _scatters_rows(op: ScatterOp) -> bool:
    shape, updates = shape_of(op.operands[0]), shape_of(op.operands[2])
    return (
        _are_of_rows(op, op.inserted_window_dims, op.scatter_dims_to_operand_dims, op.input_batching_dims)
        and tuple(updates[d] for d in ints(op.update_window_dims)) == shape[1:]
    )


def _are_of_rows(op: ScatterOp | GatherOp, dims: Attribute, index_map: Attribute, batching: Attribute) -> bool:
    """Whether the indices have one number for each row."""
    return (ints(dims), ints(index_map), ints(batching)) == ((0,), (0,), ()) and dtype_of(op.operands[1]) in INDICES


class RowOfFlat(Pattern):
    """reshape(scatter set(reshape(x), i, u)) of one row, where x has one dimension
    -> update(x, select(i is a row, u, slice(x)), start of the row).

    XLA's CPU compiler fuses a scatter of one row with the reshape, repeats it for the users of the row, and so copies
    x."""

    MADE_BY = frozenset((ScatterOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReshapeOp, rewriter: PatternRewriter, /) -> None:
        scatter, result = defined_by(op.operands[0], ScatterOp), op.results[0]
        rows = None if scatter is None else defined_by(scatter.operands[0], ReshapeOp)
        if scatter is None or rows is None or len(shape_of(result)) != 1 or rows.operands[0].type != result.type:
            return
        x, (_, indices, update), (count, *row) = rows.operands[0], scatter.operands, shape_of(rows.results[0])
        fits = dtype_of(indices) == "i64" or shape_of(x)[0] < 1 << 31
        single = scatter.kind.data == "set" and prod(shape_of(indices)) == 1 and _scatters_rows(scatter)
        if not fits or not single or scatter.parent is not op.parent or defined_by(x, SliceOp) is not None:
            return  # `ScatterInPart` first replaces the part by the whole
        b, size, dtype = _before(scatter, rewriter), prod(row), dtype_of(indices)
        at = b.reshape(indices, ())
        low, high = b.constant(0, dtype), b.constant(count, dtype)
        inside = b.binary("and", b.compare("GE", at, low), b.compare("LT", at, high))
        start = b.mul(b.select(inside, at, low), b.constant(size, dtype))
        written = b.select(inside, b.reshape(update, (size,)), b.dynamic_slice(x, [start], (size,)))
        result_value = b.dynamic_update_slice(x, written, [start])
        rewriter.replace(scatter, (), (b.reshape(result_value, (count, *row)),))
        rewriter.replace(op, (), (result_value,))


class GatherOfPart(Pattern):
    """gather(slice(x), i) -> gather(x, i + first row of the slice), if fewer rows are gathered than the slice has."""

    MADE_BY = frozenset((ReshapeOp, SliceOp))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: GatherOp, rewriter: PatternRewriter, /) -> None:
        x = op.operands[0]
        part = _part(x)
        if part is None or not _gathers_rows(op) or prod(shape_of(op.results[0])) >= prod(shape_of(x)):
            return

        def gathered(b: Builder) -> SSAValue:
            indices = op.operands[1]
            dtype, shape = dtype_of(indices), shape_of(indices)
            least, greatest = (b.constant(n, dtype, shape) for n in (0, part.rows - 1))
            inside = b.min(b.max(indices, least), greatest)
            moved = b.add(inside, b.constant(part.first, dtype, shape))
            return b.one(GatherOp, (b.reshape(part.whole, part.shape), moved), type_of(op.results[0]), op.properties)

        replace(op, rewriter, gathered)


def _gathers_rows(op: GatherOp) -> bool:
    shape = shape_of(op.operands[0])
    return _are_of_rows(op, op.collapsed_slice_dims, op.start_index_map, op.operand_batching_dims) and ints(
        op.slice_sizes
    ) == (1, *shape[1:])


PATTERNS: Table = {
    DynamicUpdateSliceOp: (ScatterInPart(),),
    ReshapeOp: (RowOfFlat(),),
    GatherOp: (GatherOfPart(),),
}
