"""Values that no operand determines: constants, iotas, run-time numbers, and random bits.

Random elements are numbered by their index among the true ones, so that streams equal those at the exact size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from xdsl.ir import SSAValue

from lazytpu.ir import constants as ops
from lazytpu.ir.base import integer
from lazytpu.ir.forms import form
from lazytpu.ir.random import RandomBitsOp
from lazytpu.ir.sizes import RECIPROCAL, TWICE
from lazytpu.ir.types import dtype_of, numel, numpy_dtype, shape_of
from lazytpu.passes.padding.dims import Dim, Refused, static
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Walk, rule


@rule(ops.ConstantOp)
def constant(w: Walk, op: ops.ConstantOp) -> Sequence[Padded] | None:
    """Keep a constant, whose elements are all equal, padding included. Compute a constant that is a size, or 2 divided
    by one, from run-time sizes."""
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


@rule(ops.IotaOp)
def iota(w: Walk, op: ops.IotaOp) -> Sequence[Padded]:
    """Count the true elements, which are the first ones, from 0."""
    along = integer(op.dim)
    return [Padded(tuple(Dim(d.factors, free=i != along) for i, d in enumerate(w.result_dims(op, free=True))))]


@rule(ops.DenseConstantOp)
def table(w: Walk, op: ops.DenseConstantOp) -> Sequence[Padded]:
    """Refuse a table of numbers."""
    raise Refused("a table of numbers in the program differs between sizes")


@rule(ops.NumberOp)
def number(w: Walk, op: ops.NumberOp) -> Sequence[Padded]:
    """Read a run-time number; packs of numbers have no padding."""
    if w.of(op.operands[0]).padded:
        raise Refused("a pack of run-time numbers is sized")
    return [Padded(static(()))]


@rule(RandomBitsOp)
def random_bits(w: Walk, op: RandomBitsOp) -> Sequence[Padded] | None:
    """Draw bits by the index among true elements if that differs from the index in memory."""
    dims, shape = w.result_dims(op), shape_of(op.results[0])
    if op.index is not None:
        return [Padded(w.dims(op.index))]
    if numel(shape) > 1 << 31:
        raise Refused(f"random bits of {numel(shape)} elements, whose places do not fit 32 bits")
    if not any(dim.padded for dim in _after_the_first(dims)):
        return [Padded(tuple(dims))]  # indices in memory equal indices among true elements
    bits = w.builder.random_bits(op.seed, op.offset, shape, dtype_of(op.results[0]), index=_places(w, dims))
    w.replace(op, bits, Padded(tuple(dims)))
    return None


def _after_the_first(dims: Sequence[Dim]) -> Sequence[Dim]:
    """Return the dimensions after the outermost one of more than one element."""
    first = next((i for i, dim in enumerate(dims) if dim.size > 1), len(dims))
    return dims[first + 1 :]


def _places(w: Walk, dims: Sequence[Dim]) -> SSAValue:
    """Return the row-major index of each true element among the true ones, ui32."""
    b, shape, stride, terms = w.builder, [dim.size for dim in dims], form(1), list[SSAValue]()
    for i, dim in reversed(list(enumerate(dims))):
        step = b.broadcast_in_dim(w.number(stride, "ui32"), shape, ())
        terms.append(b.mul(b.iota("ui32", shape, i), step))
        stride = stride * dim.total
    return reduce(b.add, terms)
