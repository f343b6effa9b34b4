"""Slices and pads whose steps are sizes, as those of diagonals are: elements are gathered at places of the run."""

from __future__ import annotations

from xdsl.ir import SSAValue

from lazytpu.ir.forms import Form
from lazytpu.ir.types import shape_of
from lazytpu.passes.padding.dims import Dim
from lazytpu.passes.padding.masks import Masks


def every(w: Masks, value: SSAValue, along: int, start: Form, step: Form, size: int) -> SSAValue:
    """`size` elements of a dimension: that at `start`, and those at each `step` after it."""
    b = w.builder
    places = b.add(b.mul(b.iota("i32", (size,), 0), _row(w, step, size)), _row(w, start, size))
    return _taken(w, value, along, places)


def spread(
    w: Masks, value: SSAValue, along: int, dim: Dim, low: Form, step: Form, size: int, fill: SSAValue
) -> SSAValue:
    """`size` elements, among which those of a dimension are `step` apart from `low` on; the others are `fill`, 0-d."""
    b, zero = w.builder, w.builder.constant(0, "i32", (size,))
    place = b.sub(b.iota("i32", (size,), 0), _row(w, low, size))
    step_row = _row(w, step, size)
    number, rest = b.div(place, step_row), b.binary("rem", place, step_row)
    there = b.and_(b.compare("GE", place, zero), b.compare("EQ", rest, zero))
    there = b.and_(there, b.compare("LT", number, _row(w, dim.total, size)))
    taken = _taken(w, value, along, number)
    shape = shape_of(taken)
    return b.select(b.broadcast_in_dim(there, shape, (along,)), taken, b.broadcast_in_dim(fill, shape, ()))


def _row(w: Masks, number: Form, size: int) -> SSAValue:
    b, known = w.builder, number.number
    return b.broadcast_in_dim(w.number(number), (size,), ()) if known is None else b.constant(known, "i32", (size,))


def _taken(w: Masks, value: SSAValue, along: int, places: SSAValue) -> SSAValue:
    """The elements of a dimension at these places, which a gather clamps."""
    shape = shape_of(value)
    return w.builder.gather(
        value, places, offset_dims=[i for i in range(len(shape)) if i != along], collapsed_slice_dims=(along,),
        start_index_map=(along,), index_vector_dim=1, slice_sizes=[1 if i == along else n for i, n in enumerate(shape)],
    )  # fmt: skip
