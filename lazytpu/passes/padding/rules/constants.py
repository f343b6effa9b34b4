"""Constants, iotas and run-time numbers."""

from __future__ import annotations

from collections.abc import Sequence

from lazytpu.ir import constants as ops
from lazytpu.ir.base import TensorOp, integer
from lazytpu.ir.sizes import RECIPROCAL, TWICE
from lazytpu.ir.types import dtype_of, numpy_dtype, shape_of
from lazytpu.passes.padding.dims import Dim, Refused, static
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Rule, Walk


def constant(w: Walk, op: TensorOp) -> Sequence[Padded] | None:
    """Keep a constant, whose elements are all equal, padding included. Compute a constant that is a size, or 2 divided
    by one, from run-time sizes."""
    assert isinstance(op, ops.ConstantOp)
    dims = tuple(w.result_dims(op, free=True))
    dtype, size, divisor = dtype_of(op.results[0]), w.annotated(op, "value", 1)[0], w.annotated(op, RECIPROCAL, 1)[0]
    if size is None and divisor is None:
        return [Padded(dims, ops.number_of(op.value))]
    if size is not None and divisor is not None:
        raise Refused("a constant is annotated as a size and as 2 divided by one")
    if size is not None:
        number = w.number(size, dtype)
    else:
        assert divisor is not None
        wide = _divided_in(dtype)
        number = w.builder.div(w.builder.constant(TWICE, wide), w.number(divisor, wide))
        number = number if wide == dtype else w.builder.convert(number, dtype)
    w.replace(op, w.builder.broadcast_in_dim(number, shape_of(op.results[0]), ()), Padded(dims))
    return None


def quotient(by: int, dtype: str) -> float:
    """Return the number that a program computes for a constant of this dtype that is 2 divided by a size."""
    wide = numpy_dtype(_divided_in(dtype)).type
    return float(numpy_dtype(dtype).type(wide(TWICE) / wide(by)))


def _divided_in(dtype: str) -> str:
    """Return the dtype of the division; narrow ones cannot represent every size."""
    return dtype if dtype == "f64" else "f32"


def iota(w: Walk, op: TensorOp) -> Sequence[Padded]:
    """Count the true elements, which are the first ones, from 0."""
    assert isinstance(op, ops.IotaOp)
    along = integer(op.dim)
    return [Padded(tuple(Dim(d.factors, free=i != along) for i, d in enumerate(w.result_dims(op, free=True))))]


def table(w: Walk, op: TensorOp) -> Sequence[Padded]:
    """Refuse a table of numbers."""
    raise Refused("a table of numbers in the program differs between sizes")


def number(w: Walk, op: TensorOp) -> Sequence[Padded]:
    """Read a run-time number; packs of numbers have no padding."""
    if w.of(op.operands[0]).padded:
        raise Refused("a pack of run-time numbers is sized")
    return [Padded(static(()))]


RULES: dict[type[TensorOp], Rule] = {
    ops.ConstantOp: constant,
    ops.DenseConstantOp: table,
    ops.IotaOp: iota,
    ops.NumberOp: number,
}
