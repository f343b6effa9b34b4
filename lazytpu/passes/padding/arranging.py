"""Rearrangement of true elements in memory, by a gather at indices computed from run-time sizes.

Merging dimensions of n:4 and 8 elements into n:4|8 moves nothing. Elements are moved if an op needs the true elements
of a dimension contiguously, or if a reshape splits a padded factor. The i-th true element of the result is then the
i-th true element of the operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from math import prod

from xdsl.ir import SSAValue

from lazytpu.ir.forms import Form, form
from lazytpu.ir.types import dtype_of, shape_of
from lazytpu.passes.padding.dims import Dim, Factor, Refused, sized
from lazytpu.passes.padding.masks import Masks


def in_a_row(dim: Dim) -> Dim:
    """Return the dimension with its true elements first, in memory of the same size."""
    return dim if dim.prefix or not dim.padded else sized(dim.size, dim.total, dim.free)


def rearranged(w: Masks, value: SSAValue, source: Sequence[Dim], target: Sequence[Dim]) -> SSAValue:
    """Return the true elements of a value in the dimensions `target`, in the same row-major order. The shape may
    differ.

    One gather runs along the dimensions that differ; common leading and trailing dimensions stay. Raise Refused if the
    numbers of elements differ.
    """
    first = _alike(source, target)
    last = min(_alike(source[::-1], target[::-1]), len(source) - first, len(target) - first)
    before, after = source[first : len(source) - last], target[first : len(target) - last]
    if _total(before) != _total(after):
        texts = [" x ".join(map(str, dims)) for dims in (source, target)]
        raise Refused(f"a reshape from {texts[0]} to {texts[1]} has another number of elements")
    shape = [dim.size for dim in target]
    outer, inner = prod(shape[:first]), prod(shape[len(shape) - last :])
    long, rows = prod(dim.size for dim in before), prod(dim.size for dim in after)
    if max(long, rows) >= 1 << 31:
        raise Refused(f"{max(long, rows)} elements are rearranged, whose places do not fit 32 bits")
    b = w.builder
    if not outer * long * inner * rows:
        return b.constant(0, dtype_of(value), shape)
    w.shared.moves += 1
    gathered = b.gather(
        b.reshape(value, (outer, long, inner)), _places(w, before, after), start_index_map=(1,), index_vector_dim=1,
        offset_dims=(0, 2), collapsed_slice_dims=(1,), slice_sizes=(outer, 1, inner),
    )  # fmt: skip
    return gathered if shape_of(gathered) == tuple(shape) else b.reshape(gathered, shape)


def _alike(source: Sequence[Dim], target: Sequence[Dim]) -> int:
    """Return the number of equal leading dimensions."""
    pairs = zip(source, target, strict=False)
    return len(list(takewhile(lambda pair: pair[0].factors == pair[1].factors, pairs)))


def _total(dims: Sequence[Dim]) -> Form:
    """Return the number of true elements."""
    return prod((dim.total for dim in dims), start=form(1))


def _factors(dims: Sequence[Dim]) -> list[Factor]:
    return [factor for dim in dims for factor in dim.factors]


def _places(w: Masks, source: Sequence[Dim], target: Sequence[Dim]) -> SSAValue:
    """Return for each element in memory of `target` the position of its source element in memory of `source`, i32.

    Positions of padding are arbitrary, also out of bounds, which a gather clamps.
    """
    places = w.builder.iota("i32", (prod(dim.size for dim in target),), 0)
    inner, outer = _factors(target), _factors(source)
    places = w.renumbered(places, [factor.size for factor in inner], [factor.true for factor in inner])
    return w.renumbered(places, [factor.true for factor in outer], [factor.size for factor in outer])
