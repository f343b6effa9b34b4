"""Writing at computed indices: scatter, index_add and the like. Updates that are out of range are dropped, and a check
reports them (R9)."""

from __future__ import annotations

from math import inf, prod
from typing import TYPE_CHECKING

import numpy as np

from lazytpu.aten.dims import front
from lazytpu.aten.indexing.gather import at_least_1d, bounds, in_range
from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.ir.symbolic import spelled
from lazytpu.ir.types import dtype_of, is_complex, is_float, numpy_dtype, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

KINDS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min", "mean": "add"}


def put_along(b: Builder, kind: str, x: SSAValue, dim: int, index: SSAValue, updates: SSAValue) -> SSAValue:
    """x[i₀, …, index[i₀, …], …, iₙ] set to, or combined with, updates[i₀, …, iₙ]; `index` may be smaller than `x`."""
    shape, extent = shape_of(x), shape_of(index)
    batch_dims = [d for d in range(len(shape)) if d != dim]
    if all(shape[d] == extent[d] for d in batch_dims):
        return b.scatter(
            x,
            index,
            updates,
            kind=kind,
            update_window_dims=[],
            inserted_window_dims=[dim],
            input_batching_dims=batch_dims,
            scatter_indices_batching_dims=batch_dims,
            scatter_dims_to_operand_dims=[dim],
            index_vector_dim=len(shape),
        )
    dtype = dtype_of(index)
    columns = [index if d == dim else b.iota(dtype, extent, d) for d in range(len(shape))]
    vectors = b.concatenate([b.reshape(c, [*extent, 1]) for c in columns], len(shape))
    return b.scatter(
        x,
        vectors,
        updates,
        kind=kind,
        update_window_dims=[],
        inserted_window_dims=range(len(shape)),
        scatter_dims_to_operand_dims=range(len(shape)),
        index_vector_dim=len(shape),
    )


def put_slices(
    b: Builder, kind: str, x: SSAValue, dim: int, index: SSAValue, updates: SSAValue, *, rounded: bool = False
) -> SSAValue:
    """Slices of `x` at the vector `index` along `dim` set to, or combined with, the slices of `updates`, in one
    scatter. `rounded`: each update is rounded to the dtype."""
    rank = len(shape_of(x))
    if prod(shape_of(updates)) == 0:
        return x
    return b.scatter(
        x,
        index,
        updates,
        kind=kind,
        update_window_dims=[d for d in range(rank) if d != dim],
        inserted_window_dims=[dim],
        scatter_dims_to_operand_dims=[dim],
        index_vector_dim=1,
        rounded=rounded,
    )


def _scatter(b: Builder, kind: str, self: SSAValue, dim: int, index: SSAValue, src: SSAValue) -> SSAValue:
    """Scatter the part of `src` that `index` covers."""
    shape = shape_of(self)
    x, index, dim = at_least_1d(b, self, index, dim)
    extent = shape_of(index)
    if prod(extent) == 0:
        return self
    src = b.reshape(src, shape_of(src) or (1,))
    src = b.slice(src, [0] * len(extent), extent)
    index = in_range(b, index, shape_of(x)[dim], bounds(dim, shape_of(x)[dim]), error="RuntimeError")
    return b.reshape(put_along(b, kind, x, dim, index, src), shape)


@rule("aten.scatter.src", "aten.scatter.reduce")
def scatter(
    b: Builder, self: SSAValue, dim: int, index: SSAValue, src: SSAValue, reduce: str | None = None
) -> SSAValue:
    """`self` with elements of `src` written, added or multiplied at `index` along `dim`."""
    return _scatter(b, KINDS[reduce] if reduce else "set", self, dim, index, src)


@rule("aten.scatter.value", "aten.scatter.value_reduce", numbers=("value",))
def scatter_value(
    b: Builder, self: SSAValue, dim: int, index: SSAValue, value: Scalar, reduce: str | None = None
) -> SSAValue:
    """`self` with one number written, added or multiplied at `index` along `dim`."""
    src = b.broadcast_to(b.scalar(value, dtype_of(self)), shape_of(index))
    return _scatter(b, KINDS[reduce] if reduce else "set", self, dim, index, src)


@rule("aten.scatter_add.default")
def scatter_add(b: Builder, self: SSAValue, dim: int, index: SSAValue, src: SSAValue) -> SSAValue:
    """`self` with elements of `src` added at `index` along `dim`."""
    return _scatter(b, "add", self, dim, index, src)


def identity(b: Builder, reduce: str, x: SSAValue) -> SSAValue:
    """The identity element of `reduce`, in the shape and dtype of `x`."""
    dtype = dtype_of(x)
    if reduce in ("sum", "mean"):
        return full(b, 0, x)
    if reduce == "prod":
        return full(b, 1, x)
    largest = reduce == "amin"
    if dtype == "i1":
        return full(b, largest, x)
    if is_float(dtype):
        return full(b, inf if largest else -inf, x)
    limits = np.iinfo(numpy_dtype(dtype))
    return full(b, int(limits.max if largest else limits.min), x)


def _average(b: Builder, summed: SSAValue, counts: SSAValue) -> SSAValue:
    """summed / counts, rounded down for integers. A count of 0 is taken as 1."""
    counts = b.convert(b.max(counts, full(b, 1, counts)), dtype_of(summed))
    if is_float(dtype_of(summed)) or is_complex(dtype_of(summed)):
        return b.div(summed, counts)
    below = b.compare("NE", b.binary("rem", summed, counts), full(b, 0, summed))
    below = b.and_(below, b.compare("LT", summed, full(b, 0, summed)))
    return b.sub(b.div(summed, counts), b.convert(below, dtype_of(summed)))


@rule("aten.scatter_reduce.two")
def scatter_reduce(
    b: Builder, self: SSAValue, dim: int, index: SSAValue, src: SSAValue, reduce: str, include_self: bool = True
) -> SSAValue:
    """Elements of `src` reduced into `self` at `index`; without `include_self` the old elements there are ignored."""
    start = self
    if not include_self:
        neutral = identity(b, reduce, b.constant(0, dtype_of(self), shape_of(index)))
        start = _scatter(b, "set", self, dim, index, neutral)
    result = _scatter(b, KINDS[reduce], start, dim, index, src)
    if reduce != "mean":
        return result
    ones = b.constant(1, "i32", shape_of(index))
    counts = _scatter(b, "add", b.constant(int(include_self), "i32", shape_of(self)), dim, index, ones)
    return _average(b, result, counts)


@rule("aten.index_reduce.default")
def index_reduce(
    b: Builder, self: SSAValue, dim: int, index: SSAValue, source: SSAValue, reduce: str, include_self: bool = True
) -> SSAValue:
    """Slices of `source` reduced into `self` along `dim`, each rounded to the dtype as the CPU does."""
    x, index, source, dim = _slices(b, self, dim, index, source)
    index = in_range(b, index, shape_of(x)[dim], "index out of range in self")
    start = x if include_self else put_slices(b, "set", x, dim, index, identity(b, reduce, source))
    result = put_slices(b, KINDS[reduce], start, dim, index, source, rounded=True)
    if reduce == "mean":
        counts = b.constant(int(include_self), "i32", shape_of(x))
        result = _average(b, result, put_slices(b, "add", counts, dim, index, b.constant(1, "i32", shape_of(source))))
    return b.reshape(result, shape_of(self))


def _slices(
    b: Builder, self: SSAValue, dim: int, index: SSAValue, source: SSAValue
) -> tuple[SSAValue, SSAValue, SSAValue, int]:
    """`self` (at least 1-d), the indices as a vector, `source` with the rank of `self`, and a non-negative `dim`."""
    shape = shape_of(self) or (1,)
    dim = front(dim, len(shape))
    length = prod(shape_of(index))
    slices = b.reshape(source, [*shape[:dim], length, *shape[dim + 1 :]])
    return b.reshape(self, shape), b.reshape(index, [length]), slices, dim


@rule("aten.index_add.default", numbers=("alpha",))
def index_add(b: Builder, self: SSAValue, dim: int, index: SSAValue, source: SSAValue, alpha: Scalar) -> SSAValue:
    """`self` with alpha times the slices of `source` added."""
    if 0 in shape_of(self):  # the CPU looks at no index
        return self
    x, index, source, dim = _slices(b, self, dim, index, source)
    # The CPU has one kernel for vectors and for the middle of three dims, and another for all other cases.
    vectors = len(shape_of(x)) == 1 or (len(shape_of(x)), dim) == (3, 1)
    error, message = ("IndexError", "index out of range in self") if vectors else ("RuntimeError", "")
    index = in_range(b, index, shape_of(x)[dim], message or bounds(dim, shape_of(x)[dim]), error=error)
    if alpha.value != 1:
        scale = b.broadcast_to(b.scalar(alpha, dtype_of(source)), shape_of(source))
        source = b.and_(source, scale) if dtype_of(source) == "i1" else b.mul(source, scale)
    kind = "max" if dtype_of(x) == "i1" else "add"
    return b.reshape(put_slices(b, kind, x, dim, index, source), shape_of(self))


@rule("aten.index_copy.default")
def index_copy(b: Builder, self: SSAValue, dim: int, index: SSAValue, source: SSAValue) -> SSAValue:
    """Slices of `self` replaced by the slices of `source`."""
    if 0 in shape_of(source):
        return self
    x, index, source, dim = _slices(b, self, dim, index, source)
    index = in_range(b, index, shape_of(x)[dim], "index_copy_(): " + bounds(dim, shape_of(x)[dim]))
    return b.reshape(put_slices(b, "set", x, dim, index, source), shape_of(self))


@rule("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor", numbers=("value",))
def index_fill(b: Builder, self: SSAValue, dim: int, index: SSAValue, value: Scalar | SSAValue) -> SSAValue:
    """Slices of `self` filled with one number; negative indices count from the end."""
    shape = shape_of(self) or (1,)
    if 0 in shape:  # nothing to fill: the CPU looks at no index
        return self
    dim, dtype = front(dim, len(shape)), dtype_of(self)
    index = b.reshape(index, [prod(shape_of(index))])
    index = in_range(b, index, shape[dim], bounds(dim, shape[dim]), wrap=True)
    number = b.scalar(value, dtype) if isinstance(value, Scalar) else b.convert(value, dtype)
    filled = b.broadcast_to(number, [*shape[:dim], *shape_of(index), *shape[dim + 1 :]])
    return b.reshape(put_slices(b, "set", b.reshape(self, shape), dim, index, filled), shape_of(self))


@rule("aten.put.default")
def put(b: Builder, self: SSAValue, index: SSAValue, source: SSAValue, accumulate: bool = False) -> SSAValue:
    """Elements of the flattened `self` set, or added to; negative indices count from the end."""
    size, length = prod(shape_of(self)), prod(shape_of(index))
    message = f"out of range: tried to access an index outside a tensor of {spelled(size)} elements."
    index = in_range(b, b.reshape(index, [length]), size, message, wrap=True)
    flat = b.reshape(self, [size])
    kind = "add" if accumulate else "set"
    return b.reshape(put_slices(b, kind, flat, 0, index, b.reshape(source, [length])), shape_of(self))
