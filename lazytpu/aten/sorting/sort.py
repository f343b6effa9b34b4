"""Sorting, and ops that rely on sorted order: topk, kthvalue, medians, mode, searchsorted."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.dims import front, keepdim_shape
from lazytpu.aten.indexing.gather import pick, take_along
from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.reductions.reduce import is_nan
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.aten.sorting.keys import key_of, sortable, value_of
from lazytpu.ir.types import bitwidth, dtype_of, is_float, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

Pair = tuple["SSAValue", "SSAValue"]


def ordered(b: Builder, x: SSAValue, dim: int, *, descending: bool = False) -> Pair:
    """(values, i64 indices) of `x` sorted stably along `dim`, with NaN the largest.

    Elements of up to 32 bits are packed with their index into one i64. XLA:CPU sorts these six times as fast as pairs:
    512 rows of 8192 f32 take 140 ms of CPU time instead of 880.
    """
    shape = shape_of(x)
    if not sortable(dtype_of(x)) or shape[dim] >= 1 << 31:
        values, indices = b.sort([x, b.iota("i64", shape, dim)], dim, descending)
        return values, indices
    (keys,) = b.sort([key_of(b, x, dim, descending)], dim)
    return value_of(b, keys, dtype_of(x), descending)


def _sort(b: Builder, x: SSAValue, dim: int, descending: bool) -> Pair:
    shape = shape_of(x)
    if not shape:
        return x, b.constant(0, "i64")
    return ordered(b, x, front(dim, len(shape)), descending=descending)


@rule("aten.sort.default")
def sort(b: Builder, self: SSAValue, dim: int = -1, descending: bool = False) -> Pair:
    """(values, indices); always stable."""
    return _sort(b, self, dim, descending)


@rule("aten.sort.stable")
def sort_stable(b: Builder, self: SSAValue, stable: bool | None, dim: int = -1, descending: bool = False) -> Pair:
    """(values, indices)."""
    return _sort(b, self, dim, descending)


@rule("aten.topk.default")
def topk(b: Builder, self: SSAValue, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    """The k largest or smallest along `dim`, best first, with their indices.

    XLA's own top-k finds 10 of 8192 f32 in each of 512 rows in 10 ms of CPU time, a full sort in 140. It takes f32
    only, so it serves the dtypes that f32 represents exactly.
    """
    shape = shape_of(self)
    if not shape:
        return b.reshape(self, b.out[0][1]), b.constant(0, "i64", b.out[1][1])
    dim, dtype = front(dim, len(shape)), dtype_of(self)
    limits = [k if d == dim else n for d, n in enumerate(shape)]
    exact = dtype == "f32" or bitwidth(dtype) < 32
    if not exact or k * 8 > shape[dim] or 0 in limits:
        values, indices = ordered(b, self, dim, descending=largest)
        return b.slice(values, [0] * len(shape), limits), b.slice(indices, [0] * len(shape), limits)
    last = [*(d for d in range(len(shape)) if d != dim), dim]
    x = b.transpose(b.convert(_nan_first(b, self, largest), "f32"), last)
    rows = [shape[d] for d in last[:-1]]
    values, indices = b.template("top_k", [x], [("f32", (*rows, k)), ("i32", (*rows, k))], k=k)
    back = [last.index(d) for d in range(len(shape))]
    values = b.convert(b.transpose(values if largest else b.neg(values), back), dtype)
    return values, b.convert(b.transpose(indices, back), "i64")


def _nan_first(b: Builder, x: SSAValue, largest: bool) -> SSAValue:
    """`x` in f32, negated for the smallest. Top-k orders NaN by its sign; for torch any NaN is the largest."""
    x = b.convert(x, "f32")
    bits = full(b, 0x7FFFFFFF if largest else -1, b.constant(0, "i32", shape_of(x)))
    return b.select(is_nan(b, x), b.bitcast_convert(bits, "f32"), x if largest else b.neg(x))


def _at(b: Builder, pair: Pair, dim: int, position: SSAValue | int, keepdim: bool) -> Pair:
    """The elements of sorted (values, indices) at `position` of `dim`: one for all rows, or one per row."""
    shape = shape_of(pair[0])
    if isinstance(position, int):
        starts = [position if d == dim else 0 for d in range(len(shape))]
        limits = [position + 1 if d == dim else n for d, n in enumerate(shape)]
        picked = [b.slice(x, starts, limits) for x in pair]
    else:
        picked = [pick(b, x, position, dim) for x in pair]
    result = keepdim_shape(shape, [dim]) if keepdim else [n for d, n in enumerate(shape) if d != dim]
    return b.reshape(picked[0], result), b.reshape(picked[1], result)


@rule("aten.kthvalue.default")
def kthvalue(b: Builder, self: SSAValue, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    """The k-th smallest element along `dim`, k counted from 1, and its index."""
    if not shape_of(self):
        return self, b.constant(0, "i64")
    dim = front(dim, len(shape_of(self)))
    return _at(b, ordered(b, self, dim), dim, k - 1, keepdim)


def _median(b: Builder, x: SSAValue, dim: int, keepdim: bool, *, skip_nan: bool) -> Pair:
    """The lower median. If a row has NaN, its first NaN, unless they are skipped."""
    shape = shape_of(x)
    if not shape:
        return x, b.constant(0, "i64")
    dim = front(dim, len(shape))
    pair, size = ordered(b, x, dim), shape[dim]
    if not is_float(dtype_of(x)):
        return _at(b, pair, dim, (size - 1) // 2, keepdim)
    missing = b.reduce("add", b.convert(is_nan(b, x), "i32"), [dim])
    numbers = b.sub(full(b, size, missing), missing)
    if skip_nan:
        numbers = b.max(numbers, full(b, 1, numbers))
        return _at(b, pair, dim, b.div(b.sub(numbers, full(b, 1, numbers)), full(b, 2, numbers)), keepdim)
    middle = full(b, (size - 1) // 2, missing)
    has_missing = b.compare("GT", missing, full(b, 0, missing))
    return _at(b, pair, dim, b.select(has_missing, numbers, middle), keepdim)


@rule("aten.median.dim")
def median_dim(b: Builder, self: SSAValue, dim: int, keepdim: bool = False) -> Pair:
    return _median(b, self, dim, keepdim, skip_nan=False)


@rule("aten.nanmedian.dim")
def nanmedian_dim(b: Builder, self: SSAValue, dim: int, keepdim: bool = False) -> Pair:
    return _median(b, self, dim, keepdim, skip_nan=True)


@rule("aten.median.default")
def median(b: Builder, self: SSAValue) -> SSAValue:
    return _flat_median(b, self, skip_nan=False)


@rule("aten.nanmedian.default")
def nanmedian(b: Builder, self: SSAValue) -> SSAValue:
    return _flat_median(b, self, skip_nan=True)


def _flat_median(b: Builder, x: SSAValue, *, skip_nan: bool) -> SSAValue:
    """The median of all elements. Of none it is NaN; for integers the least number, as on the CPU."""
    size, dtype = prod(shape_of(x)), dtype_of(x)
    of_none = float("nan") if is_float(dtype) else 0 if dtype.startswith("ui") else -(1 << (bitwidth(dtype) - 1))
    if size == 0:
        return b.constant(of_none, dtype)
    median = _median(b, b.reshape(x, [size]), 0, False, skip_nan=skip_nan)[0]
    # A program for many sizes may have none.
    nonempty = b.compare("GT", b.constant(size, "i64"), b.constant(0, "i64"))
    return b.select(nonempty, median, b.constant(of_none, dtype))


@rule("aten.mode.default")
def mode(b: Builder, self: SSAValue, dim: int = -1, keepdim: bool = False) -> Pair:
    """The most frequent element along `dim` (of several, the smallest) and its last index."""
    shape = shape_of(self)
    if not shape:
        return self, b.constant(0, "i64")
    dim = front(dim, len(shape))
    pair = ordered(b, self, dim)
    position = b.iota("i32", shape, dim)
    zeros, size = [0] * len(shape), shape[dim]
    previous = b.slice(pair[0], zeros, [size - 1 if d == dim else n for d, n in enumerate(shape)])
    following = b.slice(pair[0], [int(d == dim) for d in range(len(shape))], shape)
    low = [int(d == dim) for d in range(len(shape))]
    starts = b.pad(b.compare("NE", previous, following), b.constant(True, "i1"), low, zeros)
    run_start = b.cumulative("max", b.select(starts, position, full(b, 0, position)), dim)
    _, last = b.argreduce("max", b.sub(position, run_start), dim)
    return _at(b, pair, dim, last, keepdim)


@rule("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(
    b: Builder, self: SSAValue | Scalar, boundaries: SSAValue, out_int32: bool = False, right: bool = False
) -> SSAValue:
    """The index of the interval between sorted `boundaries` that each element belongs to."""
    return searchsorted(b, boundaries, self, out_int32, right)


@rule("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    b: Builder,
    sorted_sequence: SSAValue,
    self: SSAValue | Scalar,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: SSAValue | None = None,
) -> SSAValue:
    """The insertion point of each element of `self` in its row of `sorted_sequence` (or the only row): before equal
    elements, or after them with side "right"."""
    dtype, shape = b.out[0]
    if prod(shape) == 0:
        return b.constant(0, dtype, shape)
    sequence = sorted_sequence
    values = b.reshape(b.scalar(self, dtype_of(sequence)), shape) if isinstance(self, Scalar) else self
    if sorter is not None:
        size = full(b, shape_of(sequence)[-1], sorter)
        inside = b.and_(b.compare("GE", sorter, full(b, 0, sorter)), b.compare("LT", sorter, size))
        b.check(inside, "torch.searchsorted(): sorter index out of range", error="RuntimeError")
        sequence = take_along(b, sequence, len(shape_of(sequence)) - 1, b.convert(sorter, "i32"))
    side = side or ("right" if right else "left")
    return b.template("searchsorted", [sequence, values], [(dtype, shape)], side=side, wide=dtype == "i64")[0]


@rule("lazytpu.lexicographic_order.default")
def lexicographic_order(b: Builder, rows: SSAValue) -> SSAValue:
    """i64 [n]: the stable permutation that sorts rows [n, m] by their first column, then the second, and so on."""
    n, m = shape_of(rows)
    if m == 0 or n < 2:
        return b.iota("i64", (n,), 0)
    return b.template("lexicographic_order", [rows], [("i64", (n,))])[0]
