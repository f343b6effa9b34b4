"""Patterns of gather and scatter at indices that count: rows 0, 1, 2, ... of a table, as of positions in a sequence.

The TPU compiler reads and adds them row by row: 1.1 of 14.8 us of a small step of embeddings on a v6e."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue
from xdsl.pattern_rewriter import PatternRewriter, op_type_rewrite_pattern

from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import IotaOp
from lazytpu.ir.indexing import GatherOp, ScatterOp
from lazytpu.ir.shape import BroadcastInDimOp, ReshapeOp
from lazytpu.ir.types import dtype_of, ints, shape_of
from lazytpu.passes.patterns.indexing import exactly_up_to
from lazytpu.passes.patterns.rewriting import Pattern, Table, defined_by, replace


@dataclass(frozen=True)
class Count:
    """Indices that are their own place along `dim`, and `length` of them; the same along all other dimensions."""

    dim: int
    length: int


def count(indices: SSAValue) -> Count | None:
    """How indices count, if they do: an iota, or one that is repeated or has dimensions of size 1 added."""
    shape = shape_of(indices)
    spread, shaped = defined_by(indices, BroadcastInDimOp), defined_by(indices, ReshapeOp)
    inner = spread or shaped
    iota = defined_by(inner.operands[0] if inner is not None else indices, IotaOp)
    if iota is None:
        return None
    dim, length = iota.dim.value.data, shape_of(iota.results[0])[iota.dim.value.data]
    if length - 1 > exactly_up_to(dtype_of(indices)):
        return None
    if spread is not None:
        dim = ints(spread.dims)[dim]
    elif shaped is not None:
        long = [d for d, size in enumerate(shape) if size != 1]
        if len(long) != 1 or len(shape_of(iota.results[0])) != 1:
            return None
        dim = long[0]
    return Count(dim, length) if shape[dim] == length else None


def _rest(rank: int, dims: tuple[int, ...]) -> list[int]:
    return [dim for dim in range(rank) if dim not in dims]


class GatherAtCount(Pattern):
    """gather(x, 0, 1, 2, ...) of whole slices along one dimension -> a slice of x, repeated as the indices are."""

    MADE_BY = frozenset((IotaOp, BroadcastInDimOp, ReshapeOp))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: GatherOp, rewriter: PatternRewriter, /) -> None:
        x, indices = op.operands
        shape, along = shape_of(x), ints(op.start_index_map)
        sizes = [1 if dim in along else size for dim, size in enumerate(shape)]
        whole = ints(op.collapsed_slice_dims) == along and list(ints(op.slice_sizes)) == sizes
        if len(along) != 1 or not whole or op.index_vector_dim.value.data != len(shape_of(indices)):
            return
        found = count(indices)
        if found is None or found.length > shape[along[0]]:
            return
        result, windows = shape_of(op.results[0]), ints(op.offset_dims)
        place = _rest(len(result), windows)[found.dim]
        dims = [*windows[: along[0]], place, *windows[along[0] :]]

        def build(b: Builder) -> SSAValue:
            taken = _first(b, x, along[0], found.length)
            return taken if list(range(len(result))) == dims else b.broadcast_in_dim(taken, result, dims)

        replace(op, rewriter, build)


class AddAtCount(Pattern):
    """scatter add of whole slices at 0, 1, 2, ... along one dimension -> an addition to that part.

    No element is added to twice, and what is not added to keeps its bits."""

    MADE_BY = frozenset((IotaOp, BroadcastInDimOp, ReshapeOp))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ScatterOp, rewriter: PatternRewriter, /) -> None:
        x, indices, updates = op.operands
        shape, along, windows = shape_of(x), ints(op.scatter_dims_to_operand_dims), ints(op.update_window_dims)
        if op.kind.data != "add" or len(along) != 1 or ints(op.inserted_window_dims) != along:
            return
        dim = along[0]
        rows = [size for d, size in enumerate(shape) if d != dim]
        if len(shape_of(indices)) != 1 or op.index_vector_dim.value.data != 1:
            return
        found = count(indices)
        whole = [shape_of(updates)[d] for d in windows] == rows
        if found is None or found.length > shape[dim] or not whole:
            return
        place = _rest(len(shape), windows)[0]

        def build(b: Builder) -> SSAValue:
            added = b.transpose(updates, [*windows[:dim], place, *windows[dim:]])
            added = b.add(_first(b, x, dim, found.length), added)
            if found.length == shape[dim]:
                return added
            return b.dynamic_update_slice(x, added, [b.constant(0, "i32") for _ in shape])

        replace(op, rewriter, build)


def _first(b: Builder, x: SSAValue, dim: int, length: int) -> SSAValue:
    limits = [length if d == dim else size for d, size in enumerate(shape_of(x))]
    return b.slice(x, [0] * len(limits), limits)


PATTERNS: Table = {GatherOp: (GatherAtCount(),), ScatterOp: (AddAtCount(),)}
