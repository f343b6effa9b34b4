"""The same true elements in another arrangement: gathered at places that are computed from the sizes of the run.

Dimensions of n:4 and 8 elements are merged to n:4|8 in memory without a move. Where an op needs the true elements of a
dimension in a row, or a reshape cuts a part with padding, they are moved: the element at a place among the true ones of
the result is read at the same place among those of the operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import SSAValue

from lazytpu.ir.forms import Form, form
from lazytpu.ir.types import dtype_of, shape_of
from lazytpu.passes.padding.dims import Dim, Factor, Refused, sized
from lazytpu.passes.padding.masks import Masks


def in_a_row(dim: Dim) -> Dim:
    """The dimension with its true elements first, in memory of the same size."""
    return dim if dim.prefix or not dim.padded else sized(dim.size, dim.total, dim.free)


def rearranged(w: Masks, value: SSAValue, source: Sequence[Dim], target: Sequence[Dim]) -> SSAValue:
    """The true elements of a value in the dimensions `target`, of another shape maybe, in the same row-major order. One
    gather along what differs: dimensions that begin or end both shapes stay as they are.

    Raises Refused where these do not have as many elements."""
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
    made = b.gather(
        b.reshape(value, (outer, long, inner)), _places(w, before, after), start_index_map=(1,), index_vector_dim=1,
        offset_dims=(0, 2), collapsed_slice_dims=(1,), slice_sizes=(outer, 1, inner),
    )  # fmt: skip
    return made if shape_of(made) == tuple(shape) else b.reshape(made, shape)


def _alike(source: Sequence[Dim], target: Sequence[Dim]) -> int:
    """How many dimensions at the beginning are the same."""
    count = 0
    for x, y in zip(source, target, strict=False):
        if x.factors != y.factors:
            break
        count += 1
    return count


def _total(dims: Sequence[Dim]) -> Form:
    total = form(1)
    for dim in dims:
        total = total * dim.total
    return total


def _factors(dims: Sequence[Dim]) -> list[Factor]:
    return [factor for dim in dims for factor in dim.factors]


def _places(w: Masks, source: Sequence[Dim], target: Sequence[Dim]) -> SSAValue:
    """For each element in memory of `target`, where that of `source` lies, i32. Those of padding lie anywhere, also out
    of bounds, which a gather clamps."""
    b, rows = w.builder, (prod(dim.size for dim in target),)

    def every(number: int | Form) -> SSAValue:
        size = form(number)
        known = size.number
        return b.broadcast_in_dim(w.number(size), rows, ()) if known is None else b.constant(known, "i32", rows)

    place = lies = every(0)
    step, stride = 1, form(1)
    for i, factor in reversed(list(enumerate(_factors(target)))):  # to the place among the true elements
        digit = b.iota("i32", rows, 0)
        digit = b.div(digit, every(step)) if step > 1 else digit
        digit = b.binary("rem", digit, every(factor.size)) if i else digit
        digit = digit if stride == form(1) else b.mul(digit, every(stride))
        place = digit if step == 1 else b.add(place, digit)
        step, stride = step * factor.size, stride * factor.true
    step = 1
    for i, factor in reversed(list(enumerate(_factors(source)))):  # and from there to memory
        digit = place
        if i:
            some = b.max(every(factor.true), every(1))  # nothing has no digits
            digit, place = b.binary("rem", place, some), b.div(place, some)
        lies = digit if step == 1 else b.add(lies, b.mul(digit, every(step)))
        step *= factor.size
    return lies
