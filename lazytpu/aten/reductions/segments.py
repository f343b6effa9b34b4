"""Reductions of consecutive segments of a dimension, given by their lengths or their offsets."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.dims import front
from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

KINDS = {"sum": "sum", "mean": "mean", "prod": "prod", "max": "max", "amax": "max", "min": "min", "amin": "min"}


def _offsets(b: Builder, lengths: SSAValue | None, offsets: SSAValue | None, rows: int) -> SSAValue:
    """The starts of the segments of each row, and the end of the last: i64 [rows, segments + 1]."""
    if offsets is not None:
        return b.reshape(b.convert(offsets, "i64"), [rows, shape_of(offsets)[-1]])
    assert lengths is not None
    lengths = b.reshape(b.convert(lengths, "i64"), [rows, shape_of(lengths)[-1]])
    return b.pad(b.cumulative("add", lengths, 1), b.constant(0, "i64"), [0, 1], [0, 0])


def _rows(x: SSAValue, axis: int) -> tuple[int, int, int]:
    """The number of elements before, along and after `axis`."""
    shape = shape_of(x)
    axis = front(axis, len(shape))
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def _initial(b: Builder, initial: Scalar | None, dtype: str) -> list[SSAValue]:
    return [] if initial is None else [b.scalar(initial, dtype)]


@rule("aten.segment_reduce.default", numbers=("initial",))
def segment_reduce(
    b: Builder,
    data: SSAValue,
    reduce: str,
    *,
    lengths: SSAValue | None = None,
    indices: SSAValue | None = None,
    offsets: SSAValue | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Scalar | None = None,
) -> SSAValue:
    """`data` with `axis` reduced to one element per segment; elements outside all segments are ignored."""
    rows, size, inner = _rows(data, axis)
    (dtype, result), own = b.out[0], dtype_of(data)
    if offsets is None and lengths is not None and prod(shape_of(lengths)):
        b.check(b.compare("GE", lengths, full(b, 0, lengths)), "lengths contains negative value!", error="RuntimeError")
        if not unsafe:
            total = b.reduce("add", b.convert(lengths, "i64"), [len(shape_of(lengths)) - 1])
            message = (
                "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when "
                "!unsafe."
            )
            b.check(b.compare("EQ", total, full(b, size, total)), message, error="RuntimeError")
    if prod(result) == 0:
        return b.constant(0, dtype, result)
    bounds = _offsets(b, lengths, offsets, rows)
    flat = b.reshape(data, [rows, size, inner])
    shape = (rows, shape_of(bounds)[1] - 1, inner)
    operands = [flat, bounds, *_initial(b, initial, own)]
    return b.reshape(b.template("segment_reduce", operands, [(own, shape)], kind=KINDS[reduce])[0], result)


@rule("aten._segment_reduce_backward.default", numbers=("initial",))
def segment_reduce_backward(
    b: Builder,
    grad: SSAValue,
    output: SSAValue,
    data: SSAValue,
    reduce: str,
    *,
    lengths: SSAValue | None = None,
    offsets: SSAValue | None = None,
    axis: int = 0,
    initial: Scalar | None = None,
) -> SSAValue:
    """The gradient of `data`."""
    rows, size, inner = _rows(data, axis)
    shape, dtype = shape_of(data), dtype_of(data)
    if prod(shape) == 0 or prod(shape_of(output)) == 0:
        return b.constant(0, dtype, shape)
    bounds = _offsets(b, lengths, offsets, rows)
    segments = [rows, shape_of(bounds)[1] - 1, inner]
    reduced = [b.reshape(x, segments) for x in (grad, output)]
    operands = [*reduced, b.reshape(data, [rows, size, inner]), bounds, *_initial(b, initial, dtype)]
    result = b.template("segment_reduce_backward", operands, [(dtype, (rows, size, inner))], kind=KINDS[reduce])
    return b.reshape(result[0], shape)
