"""`own-shapes`: send large parameters and gradients in their own shapes instead of in one flat buffer.

    %0 = lazytpu.reshape %w : (tensor<256x512xf32>) -> tensor<131072xf32>
    %1 = lazytpu.concatenate %0, %bias dim = 0
    %2 = lazytpu.reshape %1 : (tensor<131328xf32>) -> tensor<1x131328xf32>
    %3 = lazytpu.all_gather %2 dim = 0 groups = G
    %4 = lazytpu.slice %3 starts = [0, 0] limits = [4, 131072] strides = [1, 1]
    %5 = lazytpu.reshape %4 : (tensor<4x131072xf32>) -> tensor<1024x512xf32>
    ->
    %5 = lazytpu.all_gather %w dim = 0 groups = G : (tensor<256x512xf32>) -> tensor<1024x512xf32>

and the same for a reduce_scatter or all_reduce of a buffer, through the elementwise ops behind it, up to the slices of
its parts. A part smaller than `part_bytes` stays in a flat buffer with the other small ones.

Needs: canonical form; a slice of the buffer is exactly one part, or lies among parts that stay flat. Guarantees: the
same elements, each reduced over the same devices. Any other buffer stays.

FSDP2 and DistributedDataParallel make these buffers, so that NCCL is called once. The TPU compiler combines collectives
by itself. A flat buffer costs a change of layout on both sides, and waits for its last part; the compiler also turns a
reduce_scatter of such a buffer into an all_reduce, which sends twice the bytes and does not run behind compute
(docs/collectives.md has the figures).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter

from lazytpu.ir.base import integer
from lazytpu.ir.binary import BinaryOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.collectives import AllGatherOp, AllReduceOp, ReduceScatterOp
from lazytpu.ir.groups import check_groups, lists_of
from lazytpu.ir.indexing import DynamicUpdateSliceOp
from lazytpu.ir.pointwise import ConvertOp
from lazytpu.ir.shape import BroadcastInDimOp, ConcatenateOp, ReshapeOp, SliceOp
from lazytpu.ir.template import TemplateOp
from lazytpu.ir.types import bitwidth, dtype_of, ints, numel, shape_of, tensor_type
from lazytpu.ir.unary import UnaryOp
from lazytpu.passes.dce import erase_dead
from lazytpu.passes.patterns.rewriting import RewriteBuilder, defined_by, splat
from lazytpu.passes.regions import blocks

PART_BYTES = 2**16
"""Least bytes of a device's part that is sent on its own: the least that the TPU compiler sends asynchronously (see
overlap_collectives.py)."""

Range: TypeAlias = tuple[int, int]
"A range of elements of a flat buffer: its start, and its end."

ELEMENTWISE = (UnaryOp, BinaryOp, ConvertOp)


@dataclass(frozen=True)
class OwnShapesPass(ModulePass):
    """Splits collectives of flat buffers into one for each large part."""

    name = "own-shapes"

    part_bytes: int = PART_BYTES

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in list(blocks(op)):
            changed = False
            for collective in list(block.ops):
                if isinstance(collective, AllGatherOp):
                    changed |= _split_gather(collective, self.part_bytes)
                elif isinstance(collective, ReduceScatterOp):
                    changed |= _split_scatter(collective, self.part_bytes)
                elif isinstance(collective, AllReduceOp):
                    changed |= _split_reduction(collective, self.part_bytes)
            if changed:
                erase_dead(block, {})


@dataclass
class _Flat:
    """A flat buffer: `parts` by their ranges, in order, and those `apart` that are sent on their own."""

    parts: dict[Range, SSAValue]
    apart: dict[Range, SSAValue] = field(default_factory=dict[Range, SSAValue])

    @staticmethod
    def of(buffer: SSAValue, dim: int) -> _Flat | None:
        """The buffer, if it is a concatenation along `dim`, or is written part by part."""
        op = defined_by(buffer, ConcatenateOp)
        if op is None or integer(op.dim) != dim:
            return _Flat.written(buffer)
        parts: dict[Range, SSAValue] = {}
        end = 0
        for part in op.operands:
            start, end = end, end + shape_of(part)[dim]
            parts[start, end] = part
        return _Flat(parts)

    @staticmethod
    def written(buffer: SSAValue) -> _Flat | None:
        """The buffer, if it is one-dimensional and consists of parts that were written into it, each in one place."""
        parts: dict[Range, SSAValue] = {}
        shape, value = shape_of(buffer), buffer
        while len(shape) == 1 and (op := defined_by(value, DynamicUpdateSliceOp)) is not None:
            start = splat(op.starts[0])
            bounds = (-1, 0) if start is None else (int(start.real), int(start.real) + shape_of(op.update)[0])
            if bounds[0] < 0 or bounds[1] > shape[0] or any(_overlap(bounds, other) for other in parts):
                return None
            parts[bounds], value = op.update, op.operand
        whole = sum(end - start for start, end in parts) == numel(shape)
        return _Flat(dict(sorted(parts.items(), key=lambda part: part[0]))) if parts and whole else None

    def choose(self, read: set[Range], part_bytes: int, rows: int) -> bool:
        """Choose the parts that are sent on their own: those of at least `part_bytes` that are read as a whole, of
        which the first dimension divides into `rows`. Returns whether there are any, and every range that is read is
        one of them or overlaps none."""
        for bounds, part in self.parts.items():
            shape = shape_of(_source(part))
            size = (bounds[1] - bounds[0]) * bitwidth(dtype_of(part)) // 8
            if bounds in read and size >= part_bytes and shape and shape[0] % rows == 0:
                self.apart[bounds] = part
        others = [bounds for bounds in read if bounds not in self.apart]
        return bool(self.apart) and not any(_overlap(a, b) for a in self.apart for b in others)

    @property
    def rest(self) -> dict[Range, SSAValue]:
        """The parts that stay flat."""
        return {bounds: part for bounds, part in self.parts.items() if bounds not in self.apart}

    def in_rest(self, bounds: Range) -> Range:
        """The place of a range in the buffer of the parts that stay flat."""
        before = sum(end - start for start, end in self.apart if end <= bounds[0])
        return bounds[0] - before, bounds[1] - before


def _overlap(a: Range, b: Range) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _columns(op: SliceOp) -> Range | None:
    """The range of the last dimension that a slice takes; None if it takes a part of another one, or has strides."""
    shape, starts, limits = shape_of(op.operands[0]), ints(op.starts), ints(op.limits)
    whole = (*starts[:-1], *limits[:-1]) == (*[0] * (len(shape) - 1), *shape[:-1])
    return (starts[-1], limits[-1]) if whole and set(ints(op.strides)) == {1} else None


def _slices(value: SSAValue) -> dict[SliceOp, Range] | None:
    """The slices that are all uses of a value, with their ranges; None if there is another use."""
    found: dict[SliceOp, Range] = {}
    for use in value.uses:
        op = use.operation
        bounds = _columns(op) if isinstance(op, SliceOp) else None
        if bounds is None:
            return None
        assert isinstance(op, SliceOp)
        found[op] = bounds
    return found


def _split_gather(op: AllGatherOp, part_bytes: int) -> bool:
    """Split a gather of a flat buffer. Returns whether it was one."""
    groups, row, slices = lists_of(op.groups), defined_by(op.operands[0], ReshapeOp), _slices(op.results[0])
    if integer(op.dim) != 0 or row is None or len(shape_of(row.operands[0])) != 1 or not slices:
        return False
    again = defined_by(row.operands[0], TemplateOp)
    if again is not None and again.template_name.data != "read_again":
        return False
    buffer, count = _Flat.of(row.operands[0] if again is None else again.operands[0], 0), check_groups(groups)
    read_ranges = set(slices.values())
    if shape_of(row.results[0]) != (1, *shape_of(row.operands[0])) or buffer is None:
        return False
    if not buffer.choose(read_ranges, part_bytes, 1) or (not buffer.rest and read_ranges - buffer.apart.keys()):
        return False
    b = _at(op)

    def read(x: SSAValue) -> SSAValue:
        """x, behind the barrier of the buffer if there is one (lazytpu/aten/recompute.py)."""
        if again is None:
            return x
        return b.template("read_again", [x, again.operands[1]], [(dtype_of(x), shape_of(x))])[0]

    gathered = {bounds: b.all_gather(read(_own(b, part)), 0, groups) for bounds, part in buffer.apart.items()}
    others = {cut: buffer.in_rest(bounds) for cut, bounds in slices.items() if bounds not in gathered}
    if others:
        rest = read(b.concatenate(list(buffer.rest.values()), 0))
        flat = b.all_gather(b.reshape(rest, (1, numel(shape_of(rest)))), 0, groups)
        for cut, (start, end) in others.items():
            _replace(cut, _at(cut).slice(flat, (0, start), (count, end)))
    for cut, bounds in slices.items():
        if bounds in gathered:
            _replace_reshaped(cut, gathered[bounds])
    _erase(op)
    return True


def _split_scatter(op: ReduceScatterOp, part_bytes: int) -> bool:
    """Split a reduce_scatter of a flat buffer. Returns whether it was one."""
    groups, kind, rows = lists_of(op.groups), op.kind.data, op.operands[0]
    buffer, inside, count = _Flat.of(rows, 1), _inside(op.results[0]), check_groups(groups)
    if integer(op.dim) != 0 or buffer is None or shape_of(rows) != (count, shape_of(rows)[-1]):
        return False
    if not buffer.choose(set(inside.slices.values()), part_bytes, count):
        return False
    b = _at(op)
    own = {
        bounds: b.reshape(b.reduce_scatter(kind, _own(b, part), 0, groups), (1, bounds[1] - bounds[0]))
        for bounds, part in buffer.apart.items()
    }
    if buffer.rest:
        flat = b.reduce_scatter(kind, b.concatenate(list(buffer.rest.values()), 1), 0, groups)
        for bounds in buffer.rest:
            start, end = buffer.in_rest(bounds)
            own[bounds] = b.slice(flat, (0, start), (1, end))
    inside.replace(op.results[0], own, b.concatenate([own[bounds] for bounds in buffer.parts], 1))
    _erase(op)
    return True


def _split_reduction(op: AllReduceOp, part_bytes: int) -> bool:
    """Split the reductions of flat buffers. Returns whether there were any."""
    groups, kind = lists_of(op.groups), op.kind.data
    split: dict[int, tuple[_Flat, _Inside]] = {}
    for index, (operand, result) in enumerate(zip(op.operands, op.results, strict=True)):
        buffer, inside = _Flat.of(operand, 0), _inside(result)
        if len(shape_of(operand)) == 1 and buffer is not None:
            if buffer.choose(set(inside.slices.values()), part_bytes, 1):
                split[index] = buffer, inside
    if not split:
        return False
    b = _at(op)
    whole = [index for index in range(len(op.operands)) if index not in split]
    if whole:
        for index, value in zip(whole, b.all_reduce(kind, [op.operands[i] for i in whole], groups), strict=True):
            op.results[index].replace_all_uses_with(value)
    for index, (buffer, inside) in split.items():
        own: dict[Range, SSAValue] = {}
        for bounds, part in buffer.apart.items():
            (reduced,) = b.all_reduce(kind, [_own(b, part)], groups)
            own[bounds] = b.reshape(reduced, (bounds[1] - bounds[0],))
        if buffer.rest:
            (flat,) = b.all_reduce(kind, [b.concatenate(list(buffer.rest.values()), 0)], groups)
            for bounds in buffer.rest:
                start, end = buffer.in_rest(bounds)
                own[bounds] = b.slice(flat, (start,), (end,))
        inside.replace(op.results[index], own, b.concatenate([own[bounds] for bounds in buffer.parts], 0))
    _erase(op)
    return True


@dataclass
class _Inside:
    """The `values` computed elementwise from a buffer, and the `slices` of them, with their ranges."""

    values: set[SSAValue]
    slices: dict[SliceOp, Range] = field(default_factory=dict[SliceOp, Range])

    def replace(self, buffer: SSAValue, own: dict[Range, SSAValue], whole: SSAValue) -> None:
        """Compute slices of one part from it, and other uses, such as a buffer that the caller keeps, from `whole`."""
        for cut, bounds in self.slices.items():
            if bounds in own:
                _replace(cut, _Part(self.values, {buffer: own[bounds]}, bounds).of(cut.operands[0], _at(cut)))
        buffer.replace_all_uses_with(whole)


def _inside(buffer: SSAValue) -> _Inside:
    inside, queue = _Inside({buffer}), [buffer]
    while queue:
        for use in queue.pop().uses:
            op = use.operation
            bounds = _columns(op) if isinstance(op, SliceOp) else None
            if bounds is not None:
                assert isinstance(op, SliceOp)
                inside.slices[op] = bounds
            elif _keeps_order(op, inside.values) and op.results[0] not in inside.values:
                inside.values.add(op.results[0])
                queue.append(op.results[0])
    return inside


def _keeps_order(op: Operation, inside: set[SSAValue]) -> bool:
    """Whether element i of the result depends only on element i of the operands inside, and on numbers."""
    if isinstance(op, ReshapeOp):
        return shape_of(op.results[0])[-1:] == (numel(shape_of(op.results[0])),)
    return isinstance(op, ELEMENTWISE) and all(x in inside or _number(x) is not None for x in op.operands)


def _number(x: SSAValue) -> SSAValue | None:
    """The value that gives all elements of x: x itself for a constant or a scalar, or the scalar that is broadcast."""
    broadcast = defined_by(x, BroadcastInDimOp)
    if broadcast is not None and shape_of(broadcast.operands[0]) == ():
        return broadcast.operands[0]
    return x if splat(x) is not None or shape_of(x) == () else None


@dataclass
class _Part:
    """The elements of the `inside` values in the range `bounds`, computed from those of the buffer."""

    inside: set[SSAValue]
    parts: dict[SSAValue, SSAValue]
    bounds: Range

    def of(self, value: SSAValue, b: Builder) -> SSAValue:
        if value in self.parts:
            return self.parts[value]
        shape = (*shape_of(value)[:-1], self.bounds[1] - self.bounds[0])
        owner = value.owner
        if value not in self.inside:
            number = _number(value)
            assert number is not None
            if (constant := splat(number)) is not None:
                self.parts[value] = b.constant(constant, dtype_of(value), shape)
            else:
                self.parts[value] = b.broadcast_in_dim(number, shape, ())
        elif isinstance(owner, ReshapeOp):
            self.parts[value] = b.reshape(self.of(owner.operands[0], b), shape)
        else:
            assert isinstance(owner, ELEMENTWISE)
            operands = [x if shape_of(x) == () else self.of(x, b) for x in owner.operands]
            op = b.op(type(owner), operands, [tensor_type(dtype_of(value), shape)], owner.properties)
            self.parts[value] = op.results[0]
        return self.parts[value]


def _source(part: SSAValue) -> SSAValue:
    """The value whose elements, converted and laid flat, are those of a part."""
    while isinstance(part.owner, ReshapeOp | ConvertOp):
        part = part.owner.operands[0]
    return part


def _own(b: Builder, part: SSAValue) -> SSAValue:
    """The elements of a part in the shape of its source."""
    owner = part.owner
    if shape_of(_source(part)) == shape_of(part) or not isinstance(owner, ReshapeOp | ConvertOp):
        return part
    own = _own(b, owner.operands[0])
    return b.convert(own, dtype_of(part)) if isinstance(owner, ConvertOp) else own


def _at(op: Operation) -> RewriteBuilder:
    return RewriteBuilder(op, PatternRewriter(op))


def _replace_reshaped(op: SliceOp, gathered: SSAValue) -> None:
    b = _at(op)
    for use in list(op.results[0].uses):
        user = use.operation
        if isinstance(user, ReshapeOp):
            user.results[0].replace_all_uses_with(_at(user).reshape(gathered, shape_of(user.results[0])))
            _erase(user)
    if op.results[0].first_use is not None:
        op.results[0].replace_all_uses_with(b.reshape(gathered, shape_of(op.results[0])))
    _erase(op)


def _replace(op: Operation, value: SSAValue) -> None:
    op.results[0].replace_all_uses_with(value)
    _erase(op)


def _erase(op: Operation) -> None:
    op.detach()
    op.erase()
