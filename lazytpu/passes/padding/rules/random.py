"""Random bits: elements are numbered by their index among the true ones, so that streams equal those at
the exact size."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from lazytpu.ir import random as ops
from lazytpu.ir.base import TensorOp
from lazytpu.ir.forms import form
from lazytpu.ir.types import dtype_of, numel, shape_of
from lazytpu.passes.padding.dims import Dim, Refused
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Rule, Walk


def random_bits(w: Walk, op: TensorOp) -> Sequence[Padded] | None:
    """Draw bits by the index among true elements if that differs from the index in memory."""
    assert isinstance(op, ops.RandomBitsOp)
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
    b, shape, stride = w.builder, [dim.size for dim in dims], form(1)
    total: SSAValue | None = None
    for i, dim in reversed(list(enumerate(dims))):
        step = b.broadcast_in_dim(w.number(stride, "ui32"), shape, ())
        term = b.mul(b.iota("ui32", shape, i), step)
        total = term if total is None else b.add(total, term)
        stride = stride * dim.total
    assert total is not None
    return total


RULES: dict[type[TensorOp], Rule] = {ops.RandomBitsOp: random_bits}
