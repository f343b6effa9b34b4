"""Writing slices: the backward of select, slice and diagonal, and their scatter variants. Parts at run-time starts."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.dims import front
from lazytpu.aten.dtypes import name
from lazytpu.aten.registry import rule
from lazytpu.aten.views.access import Base, View, read, write
from lazytpu.aten.views.steps import INDEX
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    import torch
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder


def _span(size: int, start: int | None, end: int | None, step: int) -> tuple[int, int]:
    """(start, length) of the slice start:end:step of a dimension, both ends clamped as in Python."""
    first, last = _clamped(size, 0 if start is None else start), _clamped(size, size if end is None else end)
    return first, max(0, last - first + step - 1) // step


def _clamped(size: int, place: int) -> int:
    """An end of a slice, with `step` > 0, as a place in a dimension of this size."""
    return max(0, min(size, place + size if place < 0 else place))


def _spread(
    b: Builder, x: SSAValue, value: bool | int, shape: Sequence[int], dim: int, start: int, step: int
) -> SSAValue:
    """A tensor of `shape` with `x` at start, start + step, … of `dim` and `value` elsewhere, in one pad."""
    length = shape_of(x)[dim]
    filler = b.constant(value, dtype_of(x))
    if length == 0:
        return b.broadcast_to(filler, shape)
    last = start + (length - 1) * step + 1
    zeros = [0] * len(shape)
    low, high, interior = zeros.copy(), zeros.copy(), zeros.copy()
    low[dim], high[dim], interior[dim] = start, shape[dim] - last, step - 1 if length > 1 else 0
    return b.pad(x, filler, low, high, interior)


def _written(b: Builder, x: SSAValue, src: SSAValue, dim: int, start: int, step: int) -> SSAValue:
    """`x` with `src` at start, start + step, … of dimension `dim`."""
    shape = shape_of(x)
    src = b.convert(src, dtype_of(x))
    if prod(shape_of(src)) == 0:
        return x
    if step == 1 or shape_of(src)[dim] == 1:
        dtype = "i32" if max(shape) < 1 << 31 else "i64"
        starts = [b.constant(start if d == dim else 0, dtype) for d in range(len(shape))]
        return b.dynamic_update_slice(x, src, starts)
    inside = _spread(b, b.constant(True, "i1", shape_of(src)), False, shape, dim, start, step)
    return b.select(inside, _spread(b, src, 0, shape, dim, start, step), x)


@rule("aten.slice_backward.default")
def slice_backward(
    b: Builder, grad_output: SSAValue, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> SSAValue:
    """`grad_output` at the place of the slice, zeros elsewhere."""
    dim = front(dim, len(input_sizes))
    begin, _ = _span(input_sizes[dim], start, end, step)
    return _spread(b, grad_output, 0, input_sizes, dim, begin, step)


@rule("aten.select_backward.default")
def select_backward(b: Builder, grad_output: SSAValue, input_sizes: Sequence[int], dim: int, index: int) -> SSAValue:
    """`grad_output` at one index of `dim`, zeros elsewhere."""
    dim = front(dim, len(input_sizes))
    plane = b.reshape(grad_output, [1 if d == dim else n for d, n in enumerate(input_sizes)])
    return _spread(b, plane, 0, input_sizes, dim, index % input_sizes[dim], 1)


@rule("aten.slice_scatter.default")
def slice_scatter(
    b: Builder,
    self: SSAValue,
    src: SSAValue,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> SSAValue:
    """`self` with self[start:end:step] along `dim` replaced by `src`."""
    shape = shape_of(self)
    dim = front(dim, len(shape))
    begin, length = _span(shape[dim], start, end, step)
    src = b.broadcast_to(src, [length if d == dim else n for d, n in enumerate(shape)])
    return _written(b, self, src, dim, begin, step)


@rule("aten.select_scatter.default")
def select_scatter(b: Builder, self: SSAValue, src: SSAValue, dim: int, index: int) -> SSAValue:
    """`self` with one index of `dim` replaced by `src`."""
    shape = shape_of(self)
    dim = front(dim, len(shape))
    plane = b.reshape(src, [1 if d == dim else n for d, n in enumerate(shape)])
    return _written(b, self, plane, dim, index % shape[dim], 1)


def _through(
    b: Builder, x: SSAValue, src: SSAValue, size: Sequence[int], stride: Sequence[int], offset: int
) -> SSAValue:
    """`x`, taken as stored row-major, with `src` written through a view of it."""
    base = Base(dtype_of(x), shape_of(x), _row_major(shape_of(x)))
    view = View(tuple(size), tuple(stride), offset, dtype_of(x))
    return write(b, x, base, view, b.convert(src, dtype_of(x)))


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def _with_diagonal(b: Builder, x: SSAValue, src: SSAValue, offset: int, dim1: int, dim2: int) -> SSAValue:
    """`x` with `src` on the diagonal of (dim1, dim2), `offset` columns to the right of the main one."""
    shape, stride = shape_of(x), _row_major(shape_of(x))
    dim1, dim2 = front(dim1, len(shape)), front(dim2, len(shape))
    if prod(shape_of(src)) == 0:
        return x
    start = offset * stride[dim2] if offset >= 0 else -offset * stride[dim1]
    other_dims = [d for d in range(len(shape)) if d not in (dim1, dim2)]
    strides = [*(stride[d] for d in other_dims), stride[dim1] + stride[dim2]]
    return _through(b, x, src, shape_of(src), strides, start)


@rule("aten.diagonal_scatter.default")
def diagonal_scatter(
    b: Builder, self: SSAValue, src: SSAValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> SSAValue:
    """`self` with a diagonal replaced by `src`, whose last dimension lies along it."""
    return _with_diagonal(b, self, src, offset, dim1, dim2)


@rule("aten.diagonal_backward.default")
def diagonal_backward(
    b: Builder, grad_output: SSAValue, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> SSAValue:
    """`grad_output` on a diagonal, zeros elsewhere."""
    zeros = b.constant(0, dtype_of(grad_output), input_sizes)
    return _with_diagonal(b, zeros, grad_output, offset, dim1, dim2)


@rule("aten.as_strided_scatter.default")
def as_strided_scatter(
    b: Builder,
    self: SSAValue,
    src: SSAValue,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> SSAValue:
    """`self`, taken as stored row-major, with `src` written through a view of its storage."""
    return _through(b, self, src, size, stride, storage_offset or 0)


@rule("lazytpu.box.default", numbers=("starts",))
def box(b: Builder, self: SSAValue, dims: Sequence[int], starts: Sequence[Scalar], sizes: Sequence[int]) -> SSAValue:
    """`sizes` elements of each dimension in `dims` from `starts` on, which are in bounds; all elements of the other
    dimensions."""
    shape = list(shape_of(self))
    begins = [b.constant(0, INDEX) for _ in shape]
    for dim, start, size in zip(dims, starts, sizes, strict=True):
        begins[dim], shape[dim] = b.scalar(start, INDEX), size
    return b.dynamic_slice(self, begins, shape)


@rule("lazytpu.with_box.default", numbers=("starts",))
def with_box(b: Builder, self: SSAValue, box: SSAValue, dims: Sequence[int], starts: Sequence[Scalar]) -> SSAValue:
    """`self` with `box` in place of its elements from `starts` of the dimensions `dims` on, which are in bounds."""
    begins = [b.constant(0, INDEX) for _ in shape_of(self)]
    for dim, start in zip(dims, starts, strict=True):
        begins[dim] = b.scalar(start, INDEX)
    return b.dynamic_update_slice(self, box, begins)


@rule("lazytpu.retype.default")
def retype(b: Builder, self: SSAValue, dtype: torch.dtype) -> SSAValue:
    """Bytes as numbers."""
    (size,), to = shape_of(self), name(dtype)
    bytes_ = Base(dtype_of(self), (size,), (1,))
    return read(b, self, bytes_, View((size // dtype.itemsize,), (1,), 0, to))
