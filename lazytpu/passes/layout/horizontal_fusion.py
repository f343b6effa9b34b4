"""One flat vector in the place of many values that are computed alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, groupby, takewhile
from typing import Any

from xdsl.ir import Operation, SSAValue

from lazytpu.ir.base import TensorOp, integer
from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp, NumberOp
from lazytpu.ir.shape import BroadcastInDimOp
from lazytpu.ir.types import Shape, dtype_of, is_float, numel, shape_of, tensor_type
from lazytpu.passes.patterns.broadcasts import ELEMENTWISE

DEEPEST = 16
"How many ops before a value are looked at for scalars."


class Joiner:
    """Builds vectors whose parts are values of `shapes`, one after the other and row-major, where `b` stands."""

    def __init__(self, b: Builder, shapes: Sequence[Shape], how: str):
        self.b = b
        self.sizes = [numel(shape) for shape in shapes]
        self.total = sum(self.sizes)
        self.how = how
        self._made: dict[tuple[SSAValue, ...], SSAValue] = {}
        self._known: dict[tuple[SSAValue, ...], frozenset[tuple[SSAValue, ...]]] = {}

    def join(self, values: Sequence[SSAValue]) -> SSAValue:
        """The vector of these values. What they are computed by alike, from one value that differs and from scalars, is
        computed once, on the vector of what differs."""
        return self._joined(tuple(values), DEEPEST)

    def _joined(self, values: tuple[SSAValue, ...], depth: int) -> SSAValue:
        if values not in self._made:
            self._made[values] = self._join(values, depth)
        return self._made[values]

    def repeated(self, scalars: Sequence[SSAValue]) -> SSAValue:
        """The vector that has in each part the 0-d value of that part."""
        first = scalars[0]
        if all(value is first for value in scalars):
            return self.b.broadcast_in_dim(first, (self.total,), ())
        constant = _splat(scalars)
        if constant is not None:
            return self._constant(constant)
        vector, runs, start = self._scalars(scalars), list[SSAValue](), 0
        for size, run in groupby(self.sizes):
            parts = len(list(run))
            part = self.b.slice(vector, (start,), (start + parts,))
            runs.append(self.b.reshape(self.b.broadcast_in_dim(part, (parts, size), (0,)), (parts * size,)))
            start += parts
        return self._end_to_end(runs)

    def scalars(self, values: Sequence[SSAValue], depth: int = DEEPEST) -> SSAValue:
        """The 1-D vector of 0-d values. What they are computed by alike is computed of such vectors."""
        constant = _splat(values)
        if constant is not None:
            return self._constant(constant)
        if all(value is values[0] for value in values):
            return self.b.broadcast_in_dim(values[0], (len(values),), ())
        inner = _alike(values) if depth else None
        if inner is not None:
            return self.same(values, [self.scalars(x, depth - 1) for x in inner])
        return self._scalars(values)

    def same(self, values: Sequence[SSAValue], operands: Sequence[SSAValue]) -> SSAValue:
        """The op that makes each of `values`, of whole vectors."""
        op = values[0].owner
        assert isinstance(op, TensorOp)
        result = tensor_type(dtype_of(values[0]), (self.total,))
        with self.b.at(op.location):
            return self.b.op(type(op), operands, (result,), op.properties).results[0]

    def _join(self, values: tuple[SSAValue, ...], depth: int) -> SSAValue:
        constant = _splat(values)
        if constant is not None:
            return self._constant(constant)
        sources = _broadcast_scalars(values)
        if sources is not None:
            return self.repeated(sources)
        inner = _alike(values) if depth and values not in self._sources(values, depth) else None
        if inner is not None:
            operands = [self._joined(x, depth - 1) if shape_of(x[0]) else self.repeated(x) for x in inner]
            return self.same(values, operands)
        return self._end_to_end([self.b.reshape(v, (n,)) for v, n in zip(values, self.sizes, strict=True)])

    def _sources(self, values: tuple[SSAValue, ...], depth: int) -> frozenset[tuple[SSAValue, ...]]:
        """What has to be joined for the vector of `values` when all that they are computed by alike is computed after:
        they themselves, where that would be several."""
        if values not in self._known:
            self._known[values] = self._find_sources(values, depth)
        return self._known[values]

    def _find_sources(self, values: tuple[SSAValue, ...], depth: int) -> frozenset[tuple[SSAValue, ...]]:
        if not shape_of(values[0]) or _splat(values) is not None or _broadcast_scalars(values) is not None:
            return frozenset()
        inner = _alike(values) if depth else None
        if inner is not None:
            found = frozenset[tuple[SSAValue, ...]]().union(*(self._sources(x, depth - 1) for x in inner))
            if len(found) <= 1:
                return found
        return frozenset((values,))

    def _end_to_end(self, vectors: list[SSAValue]) -> SSAValue:
        dtype = dtype_of(vectors[0])
        if self.how == "concatenate" or not is_float(dtype) or len(vectors) == 1:
            return self.b.concatenate(vectors, 0)
        zero = self.b.constant(-0.0, dtype)  # x + -0.0 has the bits of x, also where x is 0.0 or -0.0
        total, start, sums = self.total, 0, list[SSAValue]()
        for vector in vectors:
            (size,) = shape_of(vector)
            sums.append(self.b.pad(vector, zero, (start,), (total - start - size,)))
            start += size
        while len(sums) > 1:  # a balanced tree
            pairs = [self.b.add(x, y) for x, y in zip(sums[::2], sums[1::2], strict=False)]
            sums = pairs + sums[2 * len(pairs) :]
        return sums[0]

    def _scalars(self, scalars: Sequence[SSAValue]) -> SSAValue:
        """The 1-D vector of 0-d values: run-time numbers as slices of their pack."""
        ops = [value.owner for value in scalars]
        pieces: list[SSAValue] = []
        at = 0
        while at < len(ops):
            op, length = ops[at], 1
            if isinstance(op, NumberOp):
                length, step = _progression(ops[at:])
                first = integer(op.index)
                pieces.append(self.b.slice(op.pack, (first,), (first + step * (length - 1) + 1,), (step,)))
            else:
                pieces.append(self.b.reshape(scalars[at], (1,)))
            at += length
        return self.b.concatenate(pieces, 0)

    def _constant(self, found: ConstantOp) -> SSAValue:
        result = tensor_type(dtype_of(found.results[0]), (self.total,))
        return self.b.op(ConstantOp, (), (result,), found.properties).results[0]


def _alike(values: Sequence[SSAValue]) -> list[tuple[SSAValue, ...]] | None:
    """The operands of the elementwise ops that make `values`, if these are one op."""
    ops = [value.owner for value in values]
    first = ops[0]
    if not isinstance(first, ELEMENTWISE):
        return None
    if not all(type(op) is type(first) and _properties(op) == _properties(first) for op in ops):
        return None
    given = list(zip(*(op.operands for op in ops if isinstance(op, Operation)), strict=True))
    agree = all(len({(dtype_of(x), not shape_of(x)) for x in operand}) == 1 for operand in given)
    return given if agree else None


def _progression(ops: Sequence[Any]) -> tuple[int, int]:
    """How many of the first ops read numbers of one pack at equal distances, and the distance."""
    first = ops[0]
    indices = [
        integer(op.index) for op in takewhile(lambda op: isinstance(op, NumberOp) and op.pack is first.pack, ops)
    ]
    step = indices[1] - indices[0] if len(indices) > 1 and indices[1] > indices[0] else 1
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(indices, count(indices[0], step))))
    return length, step


def _properties(op: Any) -> Any:
    return op.properties if isinstance(op, TensorOp) else None


def _splat(values: Sequence[SSAValue]) -> ConstantOp | None:
    """The constant that all values are, whatever their shapes."""
    first = values[0].owner
    if not isinstance(first, ConstantOp):
        return None
    same = all(isinstance(v.owner, ConstantOp) and v.owner.properties == first.properties for v in values)
    return first if same else None


def _broadcast_scalars(values: Sequence[SSAValue]) -> tuple[SSAValue, ...] | None:
    """The 0-d values that these repeat, if all of them do."""
    found: list[SSAValue] = []
    for value in values:
        op = value.owner
        if not isinstance(op, BroadcastInDimOp) or shape_of(op.operands[0]):
            return None
        found.append(op.operands[0])
    return tuple(found)
