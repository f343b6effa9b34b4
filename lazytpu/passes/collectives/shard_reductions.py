"""`shard-reductions`: reduce-scatter a sum of which each device uses only its own part.

    %0 = lazytpu.all_reduce add %g groups = G : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = lazytpu.mul %0, %quarter : tensor<8x4xf32>
    %2 = lazytpu.group_rank groups = G : tensor<i32>
    %3 = lazytpu.mul %2, %two : tensor<i32>
    %4 = lazytpu.dynamic_slice %1, %3, %zero sizes = [2, 4]
    ->
    %0 = lazytpu.reduce_scatter add %g dim = 0 groups = G : (tensor<8x4xf32>) -> tensor<2x4xf32>
    %4 = lazytpu.mul %0, %quarter : tensor<2x4xf32>

Every use must be such a slice, or an elementwise op that is used only in this way; such ops are sharded too.

Needs: blocks in dataflow order. Guarantees: the same elements, summed in the order of a reduce_scatter; an all_reduce
with any other use stays.

XLA's own rewrite matches only a slice of the all_reduce itself. With a product in between, the TPU compiler reduces and
gathers everything: 33.8 us for 4 MB on four v6e, against 27.6 us (its own schedule, libtpu 0.0.42.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter

from lazytpu.ir.binary import BinaryOp, MulOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.collectives import AllReduceOp, GroupRankOp
from lazytpu.ir.groups import check_groups, lists_of
from lazytpu.ir.indexing import DynamicSliceOp
from lazytpu.ir.pointwise import CompareOp, ConvertOp, SelectOp
from lazytpu.ir.shape import BroadcastInDimOp
from lazytpu.ir.types import dtype_of, ints, shape_of, tensor_type
from lazytpu.ir.unary import UnaryOp
from lazytpu.passes.patterns.rewriting import RECOMPUTE, RewriteBuilder, defined_by, splat
from lazytpu.passes.regions import blocks

ELEMENTWISE = (UnaryOp, BinaryOp, CompareOp, SelectOp, ConvertOp)


@dataclass(frozen=True)
class ShardReductionsPass(ModulePass):
    """Turns an all_reduce into a reduce_scatter where each device needs only its own part."""

    name = "shard-reductions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for reduction in [o for block in blocks(op) for o in block.ops if isinstance(o, AllReduceOp)]:
            _shard(reduction)


def _shard(op: AllReduceOp) -> None:
    shards = [_shards_of(op, result) for result in op.results]
    if not any(shards):
        return
    unsharded = [i for i, shard in enumerate(shards) if shard is None]
    b, groups = RewriteBuilder(op, PatternRewriter(op)), lists_of(op.groups)
    for index, shard in enumerate(shards):
        if shard is not None:
            scattered = b.reduce_scatter(op.kind.data, op.operands[index], shard.dim, groups)
            shard.replace(op.results[index], scattered)
    if unsharded:
        reduced = b.all_reduce(op.kind.data, [op.operands[i] for i in unsharded], groups)
        for i, value in zip(unsharded, reduced, strict=True):
            op.results[i].replace_all_uses_with(value)
    op.detach()
    op.erase()


def own_part(op: DynamicSliceOp, reduced: AllReduceOp) -> int | None:
    """The dimension along which a slice takes this device's part of a group's reduction; None for any other slice."""
    shape, sizes, starts = shape_of(op.operands[0]), ints(op.sizes), op.operands[1:]
    cut_dims = [dim for dim, (size, sliced) in enumerate(zip(shape, sizes, strict=True)) if sliced != size]
    group_size = check_groups(lists_of(reduced.groups))
    if len(cut_dims) != 1 or sizes[cut_dims[0]] * group_size != shape[cut_dims[0]]:
        return None
    start, size = starts[cut_dims[0]], sizes[cut_dims[0]]
    product = defined_by(start, MulOp)
    if product is not None:
        x, y = product.operands
        start, size = (x, splat(y)) if splat(x) is None else (y, splat(x))
    elif size != 1:
        return None
    rank = defined_by(start, GroupRankOp)
    return cut_dims[0] if rank is not None and rank.groups == reduced.groups and size == sizes[cut_dims[0]] else None


def _shards_of(op: AllReduceOp, reduced: SSAValue) -> _Shards | None:
    """Return the sharded uses of a result; None unless they all end in slices of this device's part along one
    dimension."""
    slices: set[DynamicSliceOp] = set()
    inside, queue, dims = {reduced}, [reduced], set[int | None]()
    while queue:
        value = queue.pop()
        if value.first_use is None:
            return None
        for use in value.uses:
            user = use.operation
            if isinstance(user, DynamicSliceOp) and use.index == 0:
                slices.add(user)
                dims.add(own_part(user, op))
            elif not isinstance(user, ELEMENTWISE) or not _aligned(user):
                return None
            elif user.results[0] not in inside:
                inside.add(user.results[0])
                queue.append(user.results[0])
    dim = dims.pop() if len(dims) == 1 else None
    if dim is None or op.parent is None:
        return None
    return _Shards(dim, [o for o in op.parent.ops if o in slices and isinstance(o, DynamicSliceOp)], inside)


def _aligned(op: Operation) -> bool:
    """Whether each element of the result depends only on the operands' elements at the same index."""
    shape = shape_of(op.results[0])
    return all(shape_of(x) in (shape, ()) for x in op.operands)


@dataclass
class _Shards:
    """The values `inside` of which only this device's part along `dim` is used, by `slices`, in order."""

    dim: int
    slices: list[DynamicSliceOp]
    inside: set[SSAValue]
    parts: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])

    def replace(self, reduced: SSAValue, part: SSAValue) -> None:
        """Compute the sliced values from this part of `reduced`, and erase the ops that become dead."""
        self.parts[reduced] = part
        for op in self.slices:
            source = op.operands[0]
            op.results[0].replace_all_uses_with(self._part(source, op))
            op.detach()
            op.erase()
            _erase_unused(source)

    def _part(self, value: SSAValue, at: DynamicSliceOp) -> SSAValue:
        """This device's part of a value in `inside`, built before the slice `at`, where its starts are defined."""
        if value not in self.parts:
            owner, sizes = value.owner, ints(at.sizes)
            assert isinstance(owner, ELEMENTWISE)
            b = RewriteBuilder(at, PatternRewriter(at))
            b.location, b.recompute = owner.location, owner.attributes.get(RECOMPUTE)
            operands = [x if shape_of(x) == () else self._operand(b, x, at) for x in owner.operands]
            sharded = b.op(type(owner), operands, [tensor_type(dtype_of(value), sizes)], owner.properties)
            self.parts[value] = sharded.results[0]
        return self.parts[value]

    def _operand(self, b: Builder, x: SSAValue, at: DynamicSliceOp) -> SSAValue:
        number, broadcast, sizes = splat(x), defined_by(x, BroadcastInDimOp), ints(at.sizes)
        if x in self.inside:
            return self._part(x, at)
        if number is not None:
            return b.constant(number, dtype_of(x), sizes)
        if broadcast is not None and shape_of(broadcast.operands[0]) == ():
            return b.broadcast_in_dim(broadcast.operands[0], sizes, ())
        return b.dynamic_slice(x, at.operands[1:], sizes)


def _erase_unused(value: SSAValue) -> None:
    owner = value.owner
    if isinstance(owner, ELEMENTWISE) and value.first_use is None:
        operands = list(owner.operands)
        owner.detach()
        owner.erase()
        for operand in operands:
            _erase_unused(operand)
