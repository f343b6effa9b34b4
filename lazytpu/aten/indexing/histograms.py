"""Counts of elements in bins: of equal width, or between given edges, in one dimension or several."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.indexing.scatter import put_slices
from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.registry import rule
from lazytpu.aten.shape.casts import cast
from lazytpu.ir.types import dtype_of, is_float, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder


@rule("aten.histc.default", numbers=("min", "max"))
def histc(b: Builder, self: SSAValue, bins: int, min: Scalar, max: Scalar) -> SSAValue:
    """(bins,): the number of elements in each of `bins` intervals of [min, max], the last of which is closed.

    Equal bounds stand for the least and greatest element; if these are equal too, for one less and one more. Elements
    outside, and NaN, are not counted (`histogramdd_cpu_contiguous`, LINEAR_INTERPOLATION, in HistogramKernel.cpp).
    """
    dtype, n = dtype_of(self), prod(shape_of(self))
    x = b.reshape(self, [n])
    low, high = b.scalar(min, dtype), b.scalar(max, dtype)
    if n:
        unset = b.compare("EQ", low, high)
        low, high = b.select(unset, b.reduce("min", x, [0]), low), b.select(unset, b.reduce("max", x, [0]), high)
    one, same = b.constant(1, dtype), b.compare("EQ", low, high)
    low, high = b.select(same, b.sub(low, one), low), b.select(same, b.add(high, one), high)
    if is_float(dtype):
        _check_finite(b, low, high, "torch.histc: range of [min, max] is not finite")
    b.check(b.compare("LT", low, high), "torch.histc: max must be larger than min", error="RuntimeError")
    first, last = b.broadcast_to(low, [n]), b.broadcast_to(high, [n])
    inside = b.and_(b.compare("GE", x, first), b.compare("LE", x, last))
    bin_ = b.div(b.mul(b.sub(x, first), full(b, bins, x)), b.sub(last, first))
    bin_ = cast(b, b.unary("floor", bin_) if is_float(dtype) else bin_, "i32")
    bin_ = b.min(bin_, full(b, bins - 1, bin_))
    bin_ = b.select(inside, bin_, full(b, bins, bin_))
    counted = put_slices(b, "add", b.constant(0, "i32", (bins,)), 0, bin_, b.constant(1, "i32", (n,)))
    return b.convert(counted, dtype)


def _check_finite(b: Builder, low: SSAValue, high: SSAValue, message: str) -> None:
    b.check(b.and_(b.unary("is_finite", low), b.unary("is_finite", high)), message, error="RuntimeError")


def _bounds(b: Builder, x: SSAValue, dim: int, range: Sequence[float] | None) -> tuple[SSAValue, SSAValue]:
    """The outer edges (0-d) of dimension `dim` of points [M, N]: given by `range`, else the least and the greatest
    coordinate. Equal edges are moved by 1/2 to each side; without points they are 0 and 1."""
    dtype, n = dtype_of(x), shape_of(x)[0]
    if range is not None or n == 0:
        low, high = range[2 * dim : 2 * dim + 2] if range is not None else (0.0, 1.0)
        if low == high:
            low, high = low - 0.5, high + 0.5
        return b.constant(low, dtype), b.constant(high, dtype)
    column = b.reshape(b.slice(x, [0, dim], [n, dim + 1]), [n])
    low, high = b.reduce("min", column, [0]), b.reduce("max", column, [0])
    _check_finite(b, low, high, f"torch.histogramdd: dimension {dim}'s range is not finite")
    same, half = b.compare("EQ", low, high), b.constant(0.5, dtype)
    return b.select(same, b.sub(low, half), low), b.select(same, b.add(high, half), high)


def _spaced(b: Builder, bounds: tuple[SSAValue, SSAValue], bins: int) -> SSAValue:
    """bins + 1 edges, computed from the nearer end as in torch's linspace (`RangeFactoriesKernel.cpp`)."""
    low, high = bounds
    shape, dtype = [bins + 1], dtype_of(low)
    step = b.broadcast_to(b.div(b.sub(high, low), b.constant(bins, dtype)), shape)
    index = b.iota("i32", shape, 0)
    remaining = b.sub(full(b, bins, index), index)
    up = b.add(b.broadcast_to(low, shape), b.mul(step, b.convert(index, dtype)))
    down = b.sub(b.broadcast_to(high, shape), b.mul(step, b.convert(remaining, dtype)))
    return b.select(b.compare("LT", index, full(b, (bins + 1) // 2, index)), up, down)


def _places(b: Builder, x: SSAValue, edges: SSAValue) -> tuple[SSAValue, SSAValue]:
    """(the bin of each element, i32 [M]; whether it is in one). Bins include their left edge, and the last bin also
    its right edge."""
    bins, n = shape_of(edges)[0] - 1, shape_of(x)[0]
    position = b.template("searchsorted", [edges, x], [("i32", (n,))], side="right", wide=False)[0]
    bin_ = b.min(b.sub(position, full(b, 1, position)), full(b, bins - 1, position))
    first, last = (b.broadcast_to(b.reshape(b.slice(edges, [i], [i + 1]), []), [n]) for i in (0, bins))
    return bin_, b.and_(b.compare("GE", x, first), b.compare("LE", x, last))


def _histogram(b: Builder, x: SSAValue, edges: Sequence[SSAValue], weight: SSAValue | None, density: bool) -> SSAValue:
    """The number (or weight) of points [M, N] in each bin, with one dim per entry of `edges`.

    With `density`, these are divided by their sum and by the sizes of the bins.
    """
    dtype, n = dtype_of(x), shape_of(x)[0]
    shape = [shape_of(e)[0] - 1 for e in edges]
    total = prod(shape)
    if not edges:
        return b.constant(0, dtype, b.out[0][1])
    flat, counted = b.constant(0, "i32", [n]), b.constant(True, "i1", [n])
    for dim, at in enumerate(edges):
        bin_, inside = _places(b, b.reshape(b.slice(x, [0, dim], [n, dim + 1]), [n]), at)
        flat = b.add(b.mul(flat, full(b, shape[dim], flat)), bin_)
        counted = b.and_(counted, inside)
    flat = b.select(counted, flat, full(b, total, flat))
    compute = wide(dtype)
    ones = b.constant(1, "i32", [n])
    added = ones if weight is None else b.convert(b.reshape(weight, [n]), compute)
    counts = put_slices(b, "add", b.constant(0, dtype_of(added), [total]), 0, flat, added)
    result = b.reshape(b.convert(counts, compute), shape)
    if density:
        result = b.div(result, b.broadcast_to(b.reduce("add", result, range(len(shape))), shape))
        for dim, at in enumerate(edges):
            upper, lower = b.slice(at, [1], [shape[dim] + 1]), b.slice(at, [0], [shape[dim]])
            result = b.div(result, b.broadcast_in_dim(b.convert(b.sub(upper, lower), compute), shape, [dim]))
    return b.convert(result, dtype)


def _points(b: Builder, x: SSAValue) -> SSAValue:
    """Points [M, N]: all dims of `x` but the last flattened into one."""
    shape = shape_of(x)
    return b.reshape(x, [prod(shape[:-1]), shape[-1]])


def _column(b: Builder, x: SSAValue) -> SSAValue:
    """All elements as one-dimensional points [M, 1]."""
    return b.reshape(x, [prod(shape_of(x)), 1])


@rule("aten.histogram.bin_ct")
def histogram(
    b: Builder,
    self: SSAValue,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: SSAValue | None = None,
    density: bool = False,
) -> tuple[SSAValue, SSAValue]:
    """(counts [bins], edges [bins + 1]) of all elements."""
    x = _column(b, self)
    edges = _spaced(b, _bounds(b, x, 0, range), bins)
    return _histogram(b, x, [edges], weight, density), edges


@rule("aten.histogram.bins_tensor")
def histogram_of_edges(
    b: Builder, self: SSAValue, bins: SSAValue, *, weight: SSAValue | None = None, density: bool = False
) -> tuple[SSAValue, SSAValue]:
    """(counts [B], edges [B + 1]) of all elements, between edges in ascending order."""
    return _histogram(b, _column(b, self), [bins], weight, density), bins


@rule("aten._histogramdd_bin_edges.default")
def histogramdd_bin_edges(
    b: Builder,
    self: SSAValue,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: SSAValue | None = None,
    density: bool = False,
) -> list[SSAValue]:
    """The edges [bins + 1] in each dimension of points [..., N]."""
    x = _points(b, self)
    return [_spaced(b, _bounds(b, x, dim, range), count) for dim, count in enumerate(bins)]


@rule("aten._histogramdd_from_bin_cts.default")
def histogramdd(
    b: Builder,
    self: SSAValue,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: SSAValue | None = None,
    density: bool = False,
) -> SSAValue:
    """Counts of points [..., N] in bins of equal width."""
    edges = histogramdd_bin_edges(b, self, bins, range=range)
    return _histogram(b, _points(b, self), edges, weight, density)


@rule("aten._histogramdd_from_bin_tensors.default")
def histogramdd_of_edges(
    b: Builder,
    self: SSAValue,
    bins: Sequence[SSAValue],
    *,
    weight: SSAValue | None = None,
    density: bool = False,
) -> SSAValue:
    """Counts of points [..., N] between edges in ascending order."""
    return _histogram(b, _points(b, self), bins, weight, density)
