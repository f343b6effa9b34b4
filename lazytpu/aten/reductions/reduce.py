"""Sums, products, means, extremes and logical reductions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from lazytpu.aten.dims import front, keepdim_shape, reduced
from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.registry import rule
from lazytpu.aten.shape.casts import cast
from lazytpu.ir.types import dtype_of, is_complex, is_float, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

Dims = int | Sequence[int] | None


def fold(b: Builder, kind: str, x: SSAValue, dim: Dims, keepdim: bool) -> SSAValue:
    """`x` reduced by `kind` over the ATen dims `dim`."""
    return b.reduce(kind, x, reduced(dim, len(shape_of(x))), keepdim)


def total(b: Builder, x: SSAValue, dim: Dims, keepdim: bool, to: str) -> SSAValue:
    """The sum of `x` converted to `to`; f16 and bf16 are accumulated in f32 and rounded once, as on the CPU."""
    if to == "i1":
        return fold(b, "or", truth(b, x), dim, keepdim)
    return b.convert(fold(b, "add", b.convert(b.convert(x, to), wide(to)), dim, keepdim), to)


def truth(b: Builder, x: SSAValue) -> SSAValue:
    """Whether each element is nonzero; NaN is true."""
    return cast(b, x, "i1")


def is_nan(b: Builder, x: SSAValue) -> SSAValue:
    """Whether each element is NaN."""
    return b.compare("NE", x, x)


def count(x: SSAValue, dim: Dims) -> int:
    """The number of elements that a reduction combines into one."""
    shape = shape_of(x)
    return prod(shape[d] for d in reduced(dim, len(shape)))


@rule("aten.sum.default", "aten.sum.dim_IntList")
def sum_(b: Builder, self: SSAValue, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> SSAValue:
    """The sum. Bools and integers are summed as i64 unless `dtype` says otherwise; elements are converted first."""
    return total(b, self, dim, keepdim, b.out[0][0])


@rule("aten.nansum.default")
def nansum(b: Builder, self: SSAValue, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> SSAValue:
    """The sum, with NaN counted as 0."""
    if is_float(dtype_of(self)):
        self = b.select(is_nan(b, self), full(b, 0, self), self)
    return total(b, self, dim, keepdim, b.out[0][0])


@rule("aten.mean.default", "aten.mean.dim")
def mean(b: Builder, self: SSAValue, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> SSAValue:
    """sum / count, NaN for an empty set; f16 and bf16 are divided in f32."""
    to = b.out[0][0]
    folded = fold(b, "add", b.convert(b.convert(self, to), wide(to)), dim, keepdim)
    return b.convert(b.div(folded, full(b, count(self, dim), folded)), to)


@rule("aten.prod.default", "aten.prod.dim_int")
def prod_(b: Builder, self: SSAValue, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> SSAValue:
    """The product, with the dtypes of `sum`."""
    to = b.out[0][0]
    if to == "i1":
        return fold(b, "and", truth(b, self), dim, keepdim)
    return b.convert(fold(b, "mul", b.convert(b.convert(self, to), wide(to)), dim, keepdim), to)


@rule("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_(b: Builder, self: SSAValue, dim: Dims = None, keepdim: bool = False) -> SSAValue:
    """Whether any element is nonzero, as bool, or as uint8 for uint8. Empty dims (`[]`) fold nothing."""
    return _logical(b, "or", self, dim, keepdim)


@rule("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_(b: Builder, self: SSAValue, dim: Dims = None, keepdim: bool = False) -> SSAValue:
    """Whether all elements are nonzero; dtypes and dims as in `any`."""
    return _logical(b, "and", self, dim, keepdim)


def _logical(b: Builder, kind: str, x: SSAValue, dim: Dims, keepdim: bool) -> SSAValue:
    true = truth(b, x)
    if not isinstance(dim, list | tuple) or dim:
        true = fold(b, kind, true, dim, keepdim)
    return b.convert(true, b.out[0][0])


@rule("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(b: Builder, self: SSAValue, dim: Dims = None) -> SSAValue:
    """The number of nonzero elements, as i64."""
    return fold(b, "add", b.convert(truth(b, self), "i64"), dim, False)


@rule("aten.amax.default")
def amax(b: Builder, self: SSAValue, dim: Dims = None, keepdim: bool = False) -> SSAValue:
    """The largest element; NaN if there is one."""
    return fold(b, "max", self, dim, keepdim)


@rule("aten.amin.default")
def amin(b: Builder, self: SSAValue, dim: Dims = None, keepdim: bool = False) -> SSAValue:
    """The smallest element; NaN if there is one."""
    return fold(b, "min", self, dim, keepdim)


@rule("aten.max.default")
def max_(b: Builder, self: SSAValue) -> SSAValue:
    return fold(b, "max", self, None, False)


@rule("aten.min.default")
def min_(b: Builder, self: SSAValue) -> SSAValue:
    return fold(b, "min", self, None, False)


@rule("aten.aminmax.default", "aten._aminmax.default", "aten._aminmax.dim")
def aminmax(b: Builder, self: SSAValue, dim: int | None = None, keepdim: bool = False) -> tuple[SSAValue, SSAValue]:
    """(smallest, largest) over one dimension, or over all."""
    return fold(b, "min", self, dim, keepdim), fold(b, "max", self, dim, keepdim)


def extreme(b: Builder, kind: str, x: SSAValue, dim: int, keepdim: bool) -> tuple[SSAValue, SSAValue]:
    """(values, i64 indices) of the max or min along `dim`: NaN wins, and of equal elements the first."""
    shape = shape_of(x)
    if not shape:
        return x, b.constant(0, "i64")
    dim = front(dim, len(shape))
    values, indices = b.argreduce(kind, x, dim)
    if keepdim:
        values, indices = (
            b.reshape(values, keepdim_shape(shape, [dim])),
            b.reshape(indices, keepdim_shape(shape, [dim])),
        )
    return values, indices


@rule("aten.max.dim")
def max_dim(b: Builder, self: SSAValue, dim: int, keepdim: bool = False) -> tuple[SSAValue, SSAValue]:
    return extreme(b, "max", self, dim, keepdim)


@rule("aten.min.dim")
def min_dim(b: Builder, self: SSAValue, dim: int, keepdim: bool = False) -> tuple[SSAValue, SSAValue]:
    return extreme(b, "min", self, dim, keepdim)


@rule("aten.argmax.default")
def argmax(b: Builder, self: SSAValue, dim: int | None = None, keepdim: bool = False) -> SSAValue:
    """The index of the largest element along `dim`, or in the flattened tensor."""
    return _index_of(b, "max", self, dim)


@rule("aten.argmin.default")
def argmin(b: Builder, self: SSAValue, dim: int | None = None, keepdim: bool = False) -> SSAValue:
    """The index of the smallest element along `dim`, or in the flattened tensor."""
    return _index_of(b, "min", self, dim)


def _index_of(b: Builder, kind: str, x: SSAValue, dim: int | None) -> SSAValue:
    if dim is None:
        x, dim = b.reshape(x, [prod(shape_of(x))]), 0
    return b.reshape(extreme(b, kind, x, dim, False)[1], b.out[0][1])


def magnitude(b: Builder, x: SSAValue) -> SSAValue:
    """|x|; real for a complex `x`."""
    return x if dtype_of(x) == "i1" or dtype_of(x).startswith("ui") else b.abs(x)


def squares(b: Builder, x: SSAValue) -> SSAValue:
    """|x|²; real for a complex `x`."""
    if not is_complex(dtype_of(x)):
        return b.mul(x, x)
    real, imag = b.unary("real", x), b.unary("imag", x)
    return b.add(b.mul(real, real), b.mul(imag, imag))
