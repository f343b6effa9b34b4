"""Horizontal fusion: 0-d values with equal computations become the elements of one vector."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, takewhile
from typing import Any

from xdsl.ir import Operation, SSAValue

from lazytpu.ir.base import TensorOp, integer
from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp, NumberOp
from lazytpu.ir.types import dtype_of, shape_of, tensor_type
from lazytpu.passes.patterns.broadcasts import ELEMENTWISE

DEEPEST = 16
"""The depth, in ops before a value, to which scalars are searched."""

_Values = tuple[SSAValue, ...]


def vector_of(b: Builder, values: Sequence[SSAValue]) -> SSAValue:
    """Return the 1-D vector of 0-d values. Equal ops that compute all of them are fused into one op on the vectors of
    their operands, up to `DEEPEST` ops back."""
    return _vector(b, tuple(values), DEEPEST, {})


def _vector(b: Builder, values: _Values, depth: int, vectors: dict[_Values, SSAValue]) -> SSAValue:
    """Return the vector of `values`, computed once for any number of users."""
    if values not in vectors:
        vectors[values] = _computed(b, values, depth, vectors)
    return vectors[values]


def _computed(b: Builder, values: _Values, depth: int, vectors: dict[_Values, SSAValue]) -> SSAValue:
    first = values[0]
    constant = _splat(values)
    if constant is not None:
        result = tensor_type(dtype_of(first), (len(values),))
        return b.op(ConstantOp, (), (result,), constant.properties).results[0]
    if all(value is first for value in values):
        return b.broadcast_in_dim(first, (len(values),), ())
    operands = _alike(values) if depth else None
    if operands is None:
        return _end_to_end(b, values)
    return _same(b, values, [_vector(b, operand, depth - 1, vectors) for operand in operands])


def _same(b: Builder, values: Sequence[SSAValue], operands: Sequence[SSAValue]) -> SSAValue:
    """The op that defines each of `values`, applied to vectors."""
    op = values[0].owner
    assert isinstance(op, TensorOp)
    result = tensor_type(dtype_of(values[0]), (len(values),))
    with b.at(op.location):
        return b.op(type(op), operands, (result,), op.properties).results[0]


def _end_to_end(b: Builder, scalars: Sequence[SSAValue]) -> SSAValue:
    """Return the vector of 0-d values by concatenation, with run-time numbers as slices of their pack."""
    ops = [value.owner for value in scalars]
    pieces: list[SSAValue] = []
    at = 0
    while at < len(ops):
        op, length = ops[at], 1
        if isinstance(op, NumberOp):
            length, step = _progression(ops[at:])
            first = integer(op.index)
            pieces.append(b.slice(op.pack, (first,), (first + step * (length - 1) + 1,), (step,)))
        else:
            pieces.append(b.reshape(scalars[at], (1,)))
        at += length
    return b.concatenate(pieces, 0)


def _alike(values: Sequence[SSAValue]) -> list[tuple[SSAValue, ...]] | None:
    """Return the operands, by position, of the elementwise ops that define `values`; None unless these are equal
    ops."""
    ops = [value.owner for value in values]
    first = ops[0]
    if not isinstance(first, ELEMENTWISE):
        return None
    if not all(type(op) is type(first) and _properties(op) == _properties(first) for op in ops):
        return None
    operands = list(zip(*(op.operands for op in ops if isinstance(op, Operation)), strict=True))
    agree = all(len({(dtype_of(x), not shape_of(x)) for x in values_at}) == 1 for values_at in operands)
    return operands if agree else None


def _progression(ops: Sequence[Any]) -> tuple[int, int]:
    """Return (count, step): the number of leading ops that read numbers of one pack at a constant step."""
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
    """Return the constant that all values are equal to, for any shapes; None if there is none."""
    first = values[0].owner
    if not isinstance(first, ConstantOp):
        return None
    same = all(isinstance(v.owner, ConstantOp) and v.owner.properties == first.properties for v in values)
    return first if same else None
