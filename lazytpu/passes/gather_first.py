"""`gather-first`: gather one element of each row before computing on the rows.

    %0 = lazytpu.broadcast_in_dim %r dims = [0]
    %1 = lazytpu.sub %x, %0                          %3 = lazytpu.gather %x, %i
    %2 = lazytpu.gather %1, %i                 ->    %2 = lazytpu.sub %3, %r

The loss of a classifier gathers the target's log-probability from each row of log-probabilities. When it is gathered
from the logits instead, only elementwise ops and sums use the rows, so the TPU compiler recomputes them from the logits
at each use and never stores them: [tokens, words] in f32.

Needs: nothing. Guarantees: the same bits, since each element is computed by the same ops.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern

from lazytpu.ir.base import integer
from lazytpu.ir.binary import AddOp, MulOp, SubOp
from lazytpu.ir.indexing import GatherOp
from lazytpu.ir.pointwise import ConvertOp
from lazytpu.ir.shape import BroadcastInDimOp
from lazytpu.ir.types import dtype_of, ints, shape_of
from lazytpu.passes.patterns.rewriting import RewriteBuilder, defined_by

MOVED = (AddOp, SubOp, MulOp)


@dataclass(frozen=True)
class GatherFirstPass(ModulePass):
    """Moves gathers of one element per row before elementwise ops."""

    name = "gather-first"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(GatherOfElementwise()).rewrite_module(op)


class GatherOfElementwise(RewritePattern):
    """gather(f(x, y)) -> f(gather(x), gather(y)), and gather(broadcast(r)) -> r for one number r per row."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: GatherOp, rewriter: PatternRewriter, /) -> None:
        source = op.operands[0]
        if not _one_of_each_row(op):
            return
        b = RewriteBuilder(op, rewriter)
        if (spread := defined_by(source, BroadcastInDimOp)) is not None:
            rows = tuple(range(len(shape_of(source)) - 1))
            if ints(spread.dims) == rows and shape_of(spread.operands[0]) == shape_of(op.results[0]):
                rewriter.replace(op, (), (spread.operands[0],))
        elif (converted := defined_by(source, ConvertOp)) is not None:
            gathered = _gather(b, op, converted.operands[0])
            rewriter.replace(op, (), (b.convert(gathered, dtype_of(source)),))
        elif isinstance(source.owner, MOVED):
            producer = source.owner
            x, y = (_gather(b, op, operand) for operand in producer.operands)
            rewriter.replace(op, (), (b.binary(producer.name.removeprefix("lazytpu."), x, y),))


def _one_of_each_row(op: GatherOp) -> bool:
    """Whether the result has one element of each row; rows run along the last dimension."""
    shape = shape_of(op.operands[0])
    last = len(shape) - 1
    rows = tuple(range(last))
    return (
        ints(op.operand_batching_dims) == rows == ints(op.start_indices_batching_dims)
        and ints(op.collapsed_slice_dims) == ints(op.start_index_map) == (last,)
        and ints(op.offset_dims) == ()
        and shape_of(op.results[0]) == shape[:last]
    )


def _gather(b: RewriteBuilder, op: GatherOp, x: SSAValue) -> SSAValue:
    return b.gather(
        x,
        op.operands[1],
        offset_dims=(),
        collapsed_slice_dims=ints(op.collapsed_slice_dims),
        start_index_map=ints(op.start_index_map),
        index_vector_dim=integer(op.index_vector_dim),
        slice_sizes=ints(op.slice_sizes),
        operand_batching_dims=ints(op.operand_batching_dims),
        start_indices_batching_dims=ints(op.start_indices_batching_dims),
    )
