"""Slices, pads and updates of slices, at static and run-time positions.

A run-time start is clamped at the true size first, since the op itself clamps at the bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from lazytpu.ir import indexing, shape
from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp, number_of
from lazytpu.ir.forms import Form, form
from lazytpu.ir.types import dtype_of, ints, shape_of
from lazytpu.passes.padding.dims import Dim, Refused, contiguous
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Walk, rule


@rule(shape.SliceOp)
def slice_(w: Walk, op: shape.SliceOp) -> Sequence[Padded] | None:
    """Slice the true elements. A start that is a size becomes a run-time start."""
    operand, out = w.of(op.operand), shape_of(op.results[0])
    starts, limits, strides = (ints(p) for p in (op.starts, op.limits, op.strides))
    first, last = w.forms(op, "starts", starts), w.forms(op, "limits", limits)
    steps = w.forms(op, "strides", strides)
    stepped = [i for i, step in enumerate(steps) if step.number is None]
    if stepped:
        return _slice_of_steps(w, op, stepped, first, last, steps)
    dims: list[Dim] = []
    moving: dict[int, Form] = {}
    room = [0] * len(out)
    for i, (dim, low, high, stride) in enumerate(zip(operand.dims, first, last, strides, strict=True)):
        if (low, high, stride, out[i]) == (form(0), dim.total, 1, dim.size):
            dims.append(dim)
            continue
        contiguous(dim)
        behind = dim.total - high
        # An expression of two symbols need only fit at some of their sizes.
        if behind.range(w.shared.symbols)[len(behind.symbols) > 1] < 0:
            raise Refused(f"the slice ends at {high}, which may be behind the end {dim.total}")
        if low.number is None:
            if stride != 1:
                raise Refused(f"a slice with steps of {stride} starts at {low}")
            least, most = low.range(w.shared.symbols)
            if (most if len(low.symbols) > 1 else least) < 0:
                raise Refused(f"a slice at {low} may begin before 0")
            if (high - low).number != out[i]:  # its padding may end after the bound
                room[i] = max(0, min(most, dim.size) + out[i] - dim.size)
            moving[i] = low
        dims.append(w.dim(out[i], (high - low + (stride - 1)) // stride))
    if not moving:
        return [Padded(tuple(dims))]
    b = w.builder
    # Slice static starts first, then run-time starts, with room for their padding.
    fixed = [0 if i in moving else n for i, n in enumerate(starts)]
    ends = [n if i in moving else m for i, (n, m) in enumerate(zip(shape_of(op.operand), limits, strict=True))]
    value = b.slice(op.operand, fixed, ends, [1 if i in moving else n for i, n in enumerate(strides)])
    if any(room):
        value = b.pad(value, w.zero(value), [0] * len(out), room)
    at = [w.number(moving[i]) if i in moving else b.constant(0, "i32") for i in range(len(dims))]
    w.replace(op, b.dynamic_slice(value, at, out), Padded(tuple(dims)))
    return None


Forms = Sequence[Form]


def _slice_of_steps(
    w: Walk, op: shape.SliceOp, stepped: Sequence[int], first: Forms, last: Forms, steps: Forms
) -> None:
    """Slice one dimension with a stride that is a size, as for a diagonal, and take all others in full.

    The annotation of the op gives the number of elements.
    """
    (along, *further), operand, out = stepped, w.of(op.operand), w.result_dims(op)
    is_full = [(low, high) == (form(0), dim.total) for low, high, dim in zip(first, last, operand.dims, strict=True)]
    if further or not all(is_full[i] or i == along for i in range(len(is_full))):
        raise Refused("a slice with steps that are a size takes a part of another dimension, too")
    contiguous(operand.dims[along])
    dims = [out[along] if i == along else dim for i, dim in enumerate(operand.dims)]
    shape = (out[along].size,)
    numbers = w.builder.mul(w.builder.iota("i32", shape, 0), w.filled(steps[along], shape))
    places = w.builder.add(numbers, w.filled(first[along], shape))
    w.replace(op, _taken(w, op.operand, along, places), Padded(tuple(dims)))


@rule(shape.PadOp)
def pad(w: Walk, op: shape.PadOp) -> Sequence[Padded] | None:
    """Overwrite padding after the true elements with the pad value first. A `low` that is a size becomes a slice of a
    longer pad at a run-time start."""
    operand, out = w.of(op.operand), shape_of(op.results[0])
    lows, highs, interior = (ints(p) for p in (op.low, op.high, op.interior))
    first, last = w.forms(op, "low", lows), w.forms(op, "high", highs)
    steps = [between + 1 for between in w.forms(op, "interior", interior)]
    is_sized = [step.number is None or dim.padded for dim, step in zip(operand.dims, steps, strict=True)]
    spaced = [i for i, step in enumerate(steps) if step != form(1) and is_sized[i]]
    if spaced:
        return _spread(w, op, spaced, first, last, steps)
    dims: list[Dim] = []
    behind: list[int] = []
    shifts: dict[int, Form] = {}
    for i, (dim, low, high, between) in enumerate(zip(operand.dims, first, last, interior, strict=True)):
        if (low, high, between) == (form(0), form(0), 0):
            dims.append(dim)
            continue
        varies = dim.padded or low.number is None or high.number is None
        if varies and (between or not dim.prefix):
            raise Refused(f"the sized dimension {dim} is padded between its elements, or in its middle")
        if high.range(w.shared.symbols)[1] > 0:
            behind.append(i)
        if low.number is None:
            shifts[i] = low
        dims.append(w.dim(out[i], dim.total + low + high) if varies else w.dim(out[i], form(out[i])))
    _mask_with(w, op, behind)
    if not shifts:
        return [Padded(tuple(dims))]
    b, rank = w.builder, len(dims)
    # Pad by the greatest amounts, then slice at run-time starts.
    low, high = list(lows), list(highs)
    starts = [b.constant(0, "i32")] * rank
    for i, shift in shifts.items():
        least, low[i] = shift.range(w.shared.symbols)
        high[i] = out[i] - least - shape_of(op.operand)[i]
        starts[i] = w.number(shift * -1 + low[i])
    long = b.pad(op.operand, op.value, low, high, interior)
    w.replace(op, b.dynamic_slice(long, starts, out), Padded(tuple(dims)))
    return None


def _spread(w: Walk, op: shape.PadOp, spaced: Sequence[int], first: Forms, last: Forms, steps: Forms) -> None:
    """Space the elements of one dimension apart. Raise Refused if another dimension is padded."""
    (along, *further), operand, out = spaced, w.of(op.operand), w.result_dims(op)
    unspaced = [i for i in range(len(steps)) if i != along]
    if further or not all((first[i], last[i], steps[i]) == (form(0), form(0), form(1)) for i in unspaced):
        raise Refused("a sized dimension is padded between its elements, and another one is padded too")
    contiguous(operand.dims[along])
    dims = [out[along] if i == along else dim for i, dim in enumerate(operand.dims)]
    # The element at a place is the one whose number is the distance from the start, divided by the step.
    b, row = w.builder, (out[along].size,)
    step, zero = w.filled(steps[along], row), w.filled(0, row)
    place = b.sub(b.iota("i32", row, 0), w.filled(first[along], row))
    number, remainder = b.div(place, step), b.binary("rem", place, step)
    present = b.and_(b.compare("GE", place, zero), b.compare("EQ", remainder, zero))
    present = b.and_(present, b.compare("LT", number, w.filled(operand.dims[along].total, row)))
    taken = _taken(w, op.operand, along, number)
    shape = shape_of(taken)
    fill = b.broadcast_in_dim(op.value, shape, ())
    w.replace(op, b.select(b.broadcast_in_dim(present, shape, (along,)), taken, fill), Padded(tuple(dims)))


def _mask_with(w: Walk, op: shape.PadOp, only: Sequence[int]) -> None:
    """Set the operand's padding to the pad value."""
    mask = w.mask(w.dims(op.operand), only)
    if mask is not None:
        value = w.builder.broadcast_in_dim(op.value, shape_of(op.operand), ())
        op.operands[0] = w.selected(mask, op.operand, value, Padded(w.dims(op.operand)))


def _starts(w: Walk, starts: Sequence[SSAValue], dims: Sequence[Dim], window: Sequence[Dim]) -> list[SSAValue]:
    """Return the starts of a window in a value of these dimensions, clamped if the last possible start depends on
    sizes."""
    lasts = [dim.total - window_dim.total for dim, window_dim in zip(dims, window, strict=True)]
    if all(last.number is not None and not dim.padded for last, dim in zip(lasts, dims, strict=True)):
        return list(starts)
    clamped_starts: list[SSAValue] = []
    for start, last in zip(starts, lasts, strict=True):
        constant = _number(start)
        fits = constant is not None and 0 <= constant <= last.range(w.shared.symbols)[0]
        clamped_starts.append(start if fits else w.at_most(w.wide(start), last))
    return clamped_starts


def _number(start: SSAValue) -> int | None:
    """Return a start that is a constant, else None."""
    return int(number_of(start.owner.value).real) if isinstance(start.owner, ConstantOp) else None


def _room(w: Walk, starts: Sequence[SSAValue], dims: Sequence[Dim], window: Sequence[Dim]) -> list[int]:
    """Return for each dimension the number of elements by which a window at its last start may exceed the bound.

    The op would otherwise clamp such a start.
    """
    room: list[int] = []
    for start, dim, window_dim in zip(starts, dims, window, strict=True):
        constant = _number(start)
        most = (dim.total - window_dim.total).range(w.shared.symbols)[1] if constant is None else constant
        room.append(max(0, most + window_dim.size - dim.size))
    return room


def _inside(
    w: Walk, starts: Sequence[SSAValue], dims: Sequence[Dim], window: Sequence[Dim], room: Sequence[int]
) -> tuple[list[SSAValue], list[SSAValue]]:
    """Return starts at which the window in memory is within the bound, and their distances from the actual starts.

    So a large value, such as a cache, needs no padding and is updated in place.
    """
    b = w.builder
    inside, before = list(starts), [b.constant(0, "i32")] * len(starts)
    for i, (start, dim, window_dim) in enumerate(zip(starts, dims, window, strict=True)):
        if room[i]:
            inside[i] = b.min(start, b.constant(dim.size - window_dim.size, dtype_of(start)))
            before[i] = b.convert(b.sub(start, inside[i]), "i32")
    return inside, before


def _window(w: Walk, dims: Sequence[Dim], sizes: Sequence[int], trues: Sequence[Form]) -> list[Dim]:
    """Return the dimensions of a window: full dimensions, or the first elements of others."""
    result: list[Dim] = []
    for dim, size, true in zip(dims, sizes, trues, strict=True):
        if size == dim.size and true == dim.total:
            result.append(dim)
        elif dim.prefix:
            result.append(w.dim(size, true))
        else:
            raise Refused(f"a part of the merged dimension {dim} is read or written")
    return result


@rule(indexing.DynamicSliceOp)
def dynamic_slice(w: Walk, op: indexing.DynamicSliceOp) -> Sequence[Padded] | None:
    """Slice at starts clamped to true sizes."""
    sizes, operand = ints(op.sizes), w.of(op.operand)
    window = _window(w, operand.dims, sizes, w.forms(op, "sizes", sizes))
    starts = _starts(w, op.operands[1:], operand.dims, window)
    room = _room(w, starts, operand.dims, window)
    b = w.builder
    inside, before = _inside(w, starts, operand.dims, window, room)
    value = b.dynamic_slice(op.operand, inside, sizes)
    if any(room):
        value = b.dynamic_slice(b.pad(value, w.zero(value), [0] * len(sizes), room), before, sizes)
    w.replace(op, value, Padded(tuple(window)))
    return None


@rule(indexing.DynamicUpdateSliceOp)
def dynamic_update_slice(w: Walk, op: indexing.DynamicUpdateSliceOp) -> Sequence[Padded] | None:
    """Keep old elements where the update is padding, since its padding would overwrite true elements."""
    b, update = w.builder, w.dims(op.update)
    # An operand of equal elements adopts the padding of an update of its size.
    pairs = zip(w.dims(op.operand), update, strict=True)
    dims = [
        window_dim if dim.free and (window_dim.size, window_dim.total) == (dim.size, dim.total) else dim
        for dim, window_dim in pairs
    ]
    window: list[Dim] = []
    masked: list[int] = []
    for i, (dim, window_dim) in enumerate(zip(dims, update, strict=True)):
        full = (
            window_dim.size == dim.size
            and window_dim.total == dim.total
            and (window_dim.factors == dim.factors or window_dim.free)
        )
        if not full and not (dim.prefix and window_dim.prefix):
            raise Refused(f"a part of the merged dimension {dim} is written")
        if not full and window_dim.padded:
            masked.append(i)
        window.append(dim if full else window_dim)
    # Clamp the starts, and keep them within the bound.
    starts = _starts(w, op.operands[2:], dims, window)
    room = _room(w, starts, dims, window)
    inside, before = _inside(w, starts, dims, window, room)
    mask, written = w.mask(update, masked), op.update
    if mask is not None:  # a window with room has padding, so it is masked
        sizes = shape_of(written)
        written, mask = (_behind(b, value, room, before) for value in (written, mask))
        written = b.select(mask, written, b.dynamic_slice(op.operand, inside, sizes))
        w.shared.masks += 1
    dims = tuple(dim.settled for dim in dims)
    w.replace(op, b.dynamic_update_slice(op.operand, written, inside), Padded(dims))
    return None


def _behind(b: Builder, value: SSAValue, room: Sequence[int], by: Sequence[SSAValue]) -> SSAValue:
    """Return a value shifted toward the end by `by`, at most `room`, with zeros in front."""
    if not any(room):
        return value
    longer = b.pad(value, b.constant(0, dtype_of(value)), room, [0] * len(room))
    starts = [b.sub(b.constant(n, "i32"), shift) if n else shift for n, shift in zip(room, by, strict=True)]
    return b.dynamic_slice(longer, starts, shape_of(value))


def _taken(w: Walk, value: SSAValue, along: int, places: SSAValue) -> SSAValue:
    """Return the elements of a dimension at these indices, which a gather clamps."""
    shape = shape_of(value)
    return w.builder.gather(
        value, places, offset_dims=[i for i in range(len(shape)) if i != along], collapsed_slice_dims=(along,),
        start_index_map=(along,), index_vector_dim=1, slice_sizes=[1 if i == along else n for i, n in enumerate(shape)],
    )  # fmt: skip
