"""Slices and pads whose strides are sizes, as for diagonals: a gather at run-time indices."""

from __future__ import annotations

from xdsl.ir import SSAValue

from lazytpu.ir.forms import Form
from lazytpu.ir.types import shape_of
from lazytpu.passes.padding.dims import Dim
from lazytpu.passes.padding.masks import Masks


def every(w: Masks, value: SSAValue, along: int, start: Form, step: Form, size: int) -> SSAValue:
    """Return `size` elements of a dimension, beginning at `start` with stride `step`."""
    b = w.builder
    places = b.add(b.mul(b.iota("i32", (size,), 0), w.filled(step, (size,))), w.filled(start, (size,)))
    return _taken(w, value, along, places)


def spread(
    w: Masks, value: SSAValue, along: int, dim: Dim, low: Form, step: Form, size: int, fill: SSAValue
) -> SSAValue:
    """Return `size` elements in which the elements of a dimension are `step` apart, from `low` on. All others are
    `fill`, 0-d."""
    b, zero = w.builder, w.filled(0, (size,))
    place = b.sub(b.iota("i32", (size,), 0), w.filled(low, (size,)))
    step_row = w.filled(step, (size,))
    number, remainder = b.div(place, step_row), b.binary("rem", place, step_row)
    present = b.and_(b.compare("GE", place, zero), b.compare("EQ", remainder, zero))
    present = b.and_(present, b.compare("LT", number, w.filled(dim.total, (size,))))
    taken = _taken(w, value, along, number)
    shape = shape_of(taken)
    return b.select(b.broadcast_in_dim(present, shape, (along,)), taken, b.broadcast_in_dim(fill, shape, ()))


def _taken(w: Masks, value: SSAValue, along: int, places: SSAValue) -> SSAValue:
    """Return the elements of a dimension at these indices, which a gather clamps."""
    shape = shape_of(value)
    return w.builder.gather(
        value, places, offset_dims=[i for i in range(len(shape)) if i != along], collapsed_slice_dims=(along,),
        start_index_map=(along,), index_vector_dim=1, slice_sizes=[1 if i == along else n for i, n in enumerate(shape)],
    )  # fmt: skip
