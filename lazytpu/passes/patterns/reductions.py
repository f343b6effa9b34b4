"""Patterns of reduce.

Sums and products of floats are not regrouped: a sum of sums rounds in between, and 0 + -0.0 is 0.0, not -0.0.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign
from typing import TypeAlias

from xdsl.ir import SSAValue
from xdsl.pattern_rewriter import PatternRewriter, op_type_rewrite_pattern

from lazytpu.ir.base import integer
from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp, IotaOp
from lazytpu.ir.pointwise import CompareOp, ConvertOp, SelectOp
from lazytpu.ir.reductions import ReduceOp
from lazytpu.ir.shape import BroadcastInDimOp, TransposeOp
from lazytpu.ir.types import dtype_of, ints, is_complex, is_float, shape_of
from lazytpu.passes.patterns.rewriting import Pattern, Table, defined_by, replace, splat

SUMS = ("add", "mul", "total")


def _regroups(op: ReduceOp) -> bool:
    """Whether the result is independent of how the elements are grouped."""
    dtype = dtype_of(op.operands[0])
    return op.kind.data not in SUMS or not (is_float(dtype) or is_complex(dtype))


class ReduceOfUnitDims(Pattern):
    """A reduction over dimensions of size 1 -> reshape."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReduceOp, rewriter: PatternRewriter, /) -> None:
        x = op.operands[0]
        shape = shape_of(x)
        if all(shape[dim] == 1 for dim in ints(op.dims)) and _regroups(op):
            replace(op, rewriter, lambda b: b.reshape(x, shape_of(op.results[0])))


class ReduceOfSplat(Pattern):
    """max, min, and, or over a splat -> a splat of the same number."""

    MADE_BY = frozenset((ConstantOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReduceOp, rewriter: PatternRewriter, /) -> None:
        x, result = op.operands[0], op.results[0]
        number = splat(x)
        if number is not None and op.kind.data not in SUMS and 0 not in shape_of(x):
            replace(op, rewriter, lambda b: b.constant(number, dtype_of(result), shape_of(result)))


class ReduceTwice(Pattern):
    """reduce(reduce(x, d), e) of one kind -> reduce(x, d + e)."""

    MADE_BY = frozenset((ReduceOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReduceOp, rewriter: PatternRewriter, /) -> None:
        inner = defined_by(op.operands[0], ReduceOp)
        if inner is None or inner.kind.data != op.kind.data or not _regroups(op):
            return
        x, first = inner.operands[0], ints(inner.dims)
        remaining = [dim for dim in range(len(shape_of(x))) if dim not in first]
        dims = sorted([*first, *(remaining[dim] for dim in ints(op.dims))])
        replace(op, rewriter, lambda b: b.reduce(op.kind.data, x, dims))


class ReduceOfTranspose(Pattern):
    """reduce(transpose(x, p), d) -> reduce(x, p[d]) if the remaining dimensions keep their order."""

    MADE_BY = frozenset((TransposeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReduceOp, rewriter: PatternRewriter, /) -> None:
        inner = defined_by(op.operands[0], TransposeOp)
        if inner is None:
            return
        permutation, reduced = ints(inner.permutation), ints(op.dims)
        remaining = [dim for i, dim in enumerate(permutation) if i not in reduced]
        if remaining == sorted(remaining):
            dims = sorted(permutation[dim] for dim in reduced)
            replace(op, rewriter, lambda b: b.reduce(op.kind.data, inner.operands[0], dims))


class SumOfOneHot(Pattern):
    """The sum along a dimension of select(iota == t, c, 0), in which at most one element is not zero -> select(0 <= t <
    size, c, 0).

    The gradient of a cross-entropy is one-hot, and the backward pass of log_softmax sums its rows: [tokens, words]."""

    MADE_BY = frozenset((SelectOp, ConvertOp))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReduceOp, rewriter: PatternRewriter, /) -> None:
        widened = defined_by(op.operands[0], ConvertOp)
        select = defined_by(widened.operands[0] if widened is not None else op.operands[0], SelectOp)
        if select is None or op.kind.data != "add" or len(ints(op.dims)) != 1:
            return
        equal, value, zero = defined_by(select.operands[0], CompareOp), select.operands[1], splat(select.operands[2])
        if equal is None or equal.direction.data != "EQ" or zero != 0 or copysign(1, float(zero.real)) < 0:
            return
        (dim,), shape, result = ints(op.dims), shape_of(op.operands[0]), op.results[0]
        for counted, target in (equal.operands, reversed(equal.operands)):
            iota = defined_by(counted, IotaOp)
            if iota is None or integer(iota.dim) != dim or dtype_of(counted) not in ("i32", "i64"):
                continue
            row, index = _along(value, dim), _along(target, dim)
            if row is None or index is None:
                return

            def build(b: Builder, row: _Row = row, index: _Row = index) -> SSAValue:
                at, rows = index(b), shape_of(result)
                first, end = (b.constant(number, dtype_of(at), rows) for number in (0, shape[dim]))
                inside = b.binary("and", b.compare("GE", at, first), b.compare("LT", at, end))
                zeros = b.constant(0, dtype_of(result), rows)
                return b.select(inside, b.add(b.convert(row(b), dtype_of(result)), zeros), zeros)

            replace(op, rewriter, build)
            return


_Row: TypeAlias = "Callable[[Builder], SSAValue]"


def _along(x: SSAValue, dim: int) -> _Row | None:
    """A function that builds x without the dimension `dim`, if x is broadcast along it; None otherwise."""
    repeated = defined_by(x, BroadcastInDimOp)
    if repeated is None or dim in ints(repeated.dims):
        return None
    shape = [size for d, size in enumerate(shape_of(x)) if d != dim]
    dims = [d - (d > dim) for d in ints(repeated.dims)]
    return lambda b: b.broadcast_in_dim(repeated.operands[0], shape, dims)


PATTERNS: Table = {
    ReduceOp: (ReduceOfSplat(), ReduceOfUnitDims(), ReduceTwice(), ReduceOfTranspose(), SumOfOneHot()),
}
