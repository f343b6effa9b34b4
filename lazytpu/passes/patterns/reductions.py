"""Patterns of reduce.

Sums and products of floats are not regrouped: a sum of sums rounds in between, and 0 + -0.0 is 0.0.
"""

from __future__ import annotations

from xdsl.pattern_rewriter import PatternRewriter, op_type_rewrite_pattern

from lazytpu.ir.constants import ConstantOp
from lazytpu.ir.reductions import ReduceOp
from lazytpu.ir.shape import TransposeOp
from lazytpu.ir.types import dtype_of, ints, is_complex, is_float, shape_of
from lazytpu.passes.patterns.rewriting import Pattern, Table, defined_by, replace, splat


def _regroups(op: ReduceOp) -> bool:
    """True when the result does not depend on how the elements are grouped."""
    dtype = dtype_of(op.operands[0])
    return op.kind.data not in ("add", "mul") or not (is_float(dtype) or is_complex(dtype))


class ReduceOfUnitDims(Pattern):
    """A reduction of dimensions of size 1 -> reshape."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReduceOp, rewriter: PatternRewriter, /) -> None:
        x = op.operands[0]
        shape = shape_of(x)
        if all(shape[dim] == 1 for dim in ints(op.dims)) and _regroups(op):
            replace(op, rewriter, lambda b: b.reshape(x, shape_of(op.results[0])))


class ReduceOfSplat(Pattern):
    """max, min, and, or of equal elements -> that element."""

    MADE_BY = frozenset((ConstantOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReduceOp, rewriter: PatternRewriter, /) -> None:
        x, result = op.operands[0], op.results[0]
        number = splat(x)
        if number is not None and op.kind.data not in ("add", "mul") and 0 not in shape_of(x):
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
        left = [dim for dim in range(len(shape_of(x))) if dim not in first]
        dims = sorted([*first, *(left[dim] for dim in ints(op.dims))])
        replace(op, rewriter, lambda b: b.reduce(op.kind.data, x, dims))


class ReduceOfTranspose(Pattern):
    """reduce(transpose(x, p), d) -> reduce(x, p[d]) when the dimensions left keep their order."""

    MADE_BY = frozenset((TransposeOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReduceOp, rewriter: PatternRewriter, /) -> None:
        inner = defined_by(op.operands[0], TransposeOp)
        if inner is None:
            return
        permutation, reduced = ints(inner.permutation), ints(op.dims)
        left = [dim for i, dim in enumerate(permutation) if i not in reduced]
        if left == sorted(left):
            dims = sorted(permutation[dim] for dim in reduced)
            replace(op, rewriter, lambda b: b.reduce(op.kind.data, inner.operands[0], dims))


PATTERNS: Table = {ReduceOp: (ReduceOfSplat(), ReduceOfUnitDims(), ReduceTwice(), ReduceOfTranspose())}
