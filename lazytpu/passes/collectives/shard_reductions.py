"""`shard-reductions`: a sum of which every device uses a part of its own is only made in parts.

    %0 = lazytpu.all_reduce add %g groups = G : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = lazytpu.mul %0, %quarter : tensor<8x4xf32>
    %2 = lazytpu.group_rank groups = G : tensor<i32>
    %3 = lazytpu.mul %2, %two : tensor<i32>
    %4 = lazytpu.dynamic_slice %1, %3, %zero sizes = [2, 4]
    ->
    %0 = lazytpu.reduce_scatter add %g dim = 0 groups = G : (tensor<8x4xf32>) -> tensor<2x4xf32>
    %4 = lazytpu.mul %0, %quarter : tensor<2x4xf32>

The use must be such a slice, or an elementwise op all of whose uses are: the work between becomes smaller too.

Needs: blocks in dataflow order. Guarantees: the same elements, summed in the order of a reduce_scatter; an all_reduce
with any other use stays.

XLA's own rewrite sees only a slice of the all_reduce itself. With a product between them the TPU compiler reduces and
gathers all of it: 33.8 us for 4 MB on four v6e, against 27.6 us (its own schedule, libtpu 0.0.42.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter

from lazytpu.ir.binary import BinaryOp, MulOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.collectives import AllReduceOp, GroupRankOp, lists_of
from lazytpu.ir.indexing import DynamicSliceOp
from lazytpu.ir.pointwise import CompareOp, ConvertOp, SelectOp
from lazytpu.ir.shape import BroadcastInDimOp
from lazytpu.ir.types import dtype_of, ints, shape_of, tensor_type
from lazytpu.ir.unary import UnaryOp
from lazytpu.passes.patterns.rewriting import RECOMPUTE, RewriteBuilder, defined_by, splat

ELEMENTWISE = (UnaryOp, BinaryOp, CompareOp, SelectOp, ConvertOp)


@dataclass(frozen=True)
class ShardReductionsPass(ModulePass):
    """all_reduce to reduce_scatter where each device needs its own part alone."""

    name = "shard-reductions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and not function.is_declaration:
                for each in [o for o in function.body.block.ops if isinstance(o, AllReduceOp)]:
                    _shard(each)


def _shard(op: AllReduceOp) -> None:
    found = [_parts_of(op, result) for result in op.results]
    if not any(found):
        return
    kept = [i for i, parts in enumerate(found) if parts is None]
    build, groups = RewriteBuilder(op, PatternRewriter(op)), lists_of(op.groups)
    for index, parts in enumerate(found):
        if parts is not None:
            part = build.reduce_scatter(op.kind.data, op.operands[index], parts.dim, groups)
            parts.replace(op.results[index], part)
    if kept:
        rest = build.all_reduce(op.kind.data, [op.operands[i] for i in kept], groups)
        for i, value in zip(kept, rest, strict=True):
            op.results[i].replace_all_uses_with(value)
    op.detach()
    op.erase()


def own_part(op: DynamicSliceOp, reduced: AllReduceOp) -> int | None:
    """The dimension along which a slice takes this device's part of what a group reduced; None for another slice."""
    shape, sizes, starts = shape_of(op.operands[0]), ints(op.sizes), op.operands[1:]
    cut = [dim for dim, (size, taken) in enumerate(zip(shape, sizes, strict=True)) if taken != size]
    parts = len(lists_of(reduced.groups)[0])
    if len(cut) != 1 or sizes[cut[0]] * parts != shape[cut[0]]:
        return None
    start, size = starts[cut[0]], sizes[cut[0]]
    product = defined_by(start, MulOp)
    if product is not None:
        x, y = product.operands
        start, size = (x, splat(y)) if splat(x) is None else (y, splat(x))
    elif size != 1:
        return None
    rank = defined_by(start, GroupRankOp)
    return cut[0] if rank is not None and rank.groups == reduced.groups and size == sizes[cut[0]] else None


def _parts_of(op: AllReduceOp, reduced: SSAValue) -> _Parts | None:
    """What becomes of a result; None unless all its uses come to slices of the own part, along one dimension."""
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
    return _Parts(dim, [each for each in op.parent.ops if each in slices and isinstance(each, DynamicSliceOp)], inside)


def _aligned(op: Operation) -> bool:
    """Whether each element of the result comes from the operands' elements at its place."""
    shape = shape_of(op.results[0])
    return all(shape_of(x) in (shape, ()) for x in op.operands)


@dataclass
class _Parts:
    """The values `inside` are only used in this device's parts of them along `dim`, which `slices` take, in order."""

    dim: int
    slices: list[DynamicSliceOp]
    inside: set[SSAValue]
    made: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])

    def replace(self, reduced: SSAValue, part: SSAValue) -> None:
        """Compute the parts from that of what was reduced, and erase what nothing needs any more."""
        self.made[reduced] = part
        for op in self.slices:
            whole = op.operands[0]
            op.results[0].replace_all_uses_with(self._part(whole, op))
            op.detach()
            op.erase()
            _erase_unused(whole)

    def _part(self, value: SSAValue, at: DynamicSliceOp) -> SSAValue:
        """The part of a value inside, built before the slice `at`, where the starts are known."""
        if value not in self.made:
            owner, sizes = value.owner, ints(at.sizes)
            assert isinstance(owner, ELEMENTWISE)
            build = RewriteBuilder(at, PatternRewriter(at))
            build.location, build.recompute = owner.location, owner.attributes.get(RECOMPUTE)
            operands = [x if shape_of(x) == () else self._operand(build, x, at) for x in owner.operands]
            made = build.op(type(owner), operands, [tensor_type(dtype_of(value), sizes)], owner.properties)
            self.made[value] = made.results[0]
        return self.made[value]

    def _operand(self, b: Builder, x: SSAValue, at: DynamicSliceOp) -> SSAValue:
        number, spread, sizes = splat(x), defined_by(x, BroadcastInDimOp), ints(at.sizes)
        if x in self.inside:
            return self._part(x, at)
        if number is not None:
            return b.constant(number, dtype_of(x), sizes)
        if spread is not None and shape_of(spread.operands[0]) == ():
            return b.broadcast_in_dim(spread.operands[0], sizes, ())
        return b.dynamic_slice(x, at.operands[1:], sizes)


def _erase_unused(value: SSAValue) -> None:
    owner = value.owner
    if isinstance(owner, ELEMENTWISE) and value.first_use is None:
        operands = list(owner.operands)
        owner.detach()
        owner.erase()
        for each in operands:
            _erase_unused(each)
