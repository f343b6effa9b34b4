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
    if any(step.number is None for step in steps):
        return _slice_of_steps(w, op, first, last, steps)
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


def _slice_of_steps(w: Walk, op: shape.SliceOp, first: Forms, last: Forms, steps: Forms) -> None:
    """Slice one dimension with a stride that is a size, as for a diagonal, and take all others in full."""
    ends = [dim.total - end for dim, end in zip(w.dims(op.operand), last, strict=True)]
    along, _, dims = _only(w, op, first, ends, steps)
    shape = (dims[along].size,)
    numbers = w.builder.mul(w.builder.iota("i32", shape, 0), w.filled(steps[along], shape))
    places = w.builder.add(numbers, w.filled(first[along], shape))
    w.replace(op, _taken(w, op.operand, along, places), Padded(dims))


def _only(
    w: Walk, op: shape.SliceOp | shape.PadOp, low: Forms, high: Forms, steps: Forms
) -> tuple[int, Dim, tuple[Dim, ...]]:
    """Return the only dimension that an op cuts, extends or steps through, this dimension of the operand, and the
    dimensions of the result.

    The annotation of the op gives the number of elements. Raise Refused if there are several such dimensions.
    """
    unchanged = form(0), form(0), form(1)
    along, *further = [i for i, of in enumerate(zip(low, high, steps, strict=True)) if of != unchanged]
    if further:
        raise Refused("a dimension has steps that are a size, or sized gaps, and another one is cut or extended too")
    out, dims = w.result_dims(op), w.dims(op.operand)
    contiguous(dims[along])
    return along, dims[along], (*dims[:along], out[along], *dims[along + 1 :])


@rule(shape.PadOp)
def pad(w: Walk, op: shape.PadOp) -> Sequence[Padded] | None:
    """Overwrite padding after the true elements with the pad value first. A `low` that is a size becomes a slice of a
    longer pad at a run-time start."""
    operand, out = w.of(op.operand), shape_of(op.results[0])
    lows, highs, interior = (ints(p) for p in (op.low, op.high, op.interior))
    first, last = w.forms(op, "low", lows), w.forms(op, "high", highs)
    steps = [between + 1 for between in w.forms(op, "interior", interior)]
    is_sized = [step.number is None or dim.padded for dim, step in zip(operand.dims, steps, strict=True)]
    if any(step != form(1) and is_sized[i] for i, step in enumerate(steps)):
        return _spread(w, op, first, last, steps)
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


def _spread(w: Walk, op: shape.PadOp, first: Forms, last: Forms, steps: Forms) -> None:
    """Space the elements of one dimension apart. Raise Refused if another dimension is padded."""
    along, operand, dims = _only(w, op, first, last, steps)
    # The element at a place is the one whose number is the distance from the start, divided by the step.
    b, row = w.builder, (dims[along].size,)
    step, zero = w.filled(steps[along], row), w.filled(0, row)
    place = b.sub(b.iota("i32", row, 0), w.filled(first[along], row))
    number, remainder = b.div(place, step), b.binary("rem", place, step)
    present = b.and_(b.compare("GE", place, zero), b.compare("EQ", remainder, zero))
    present = b.and_(present, b.compare("LT", number, w.filled(operand.total, row)))
    taken = _taken(w, op.operand, along, number)
    shape = shape_of(taken)
    fill = b.broadcast_in_dim(op.value, shape, ())
    w.replace(op, b.select(b.broadcast_in_dim(present, shape, (along,)), taken, fill), Padded(dims))


def _mask_with(w: Walk, op: shape.PadOp, only: Sequence[int]) -> None:
    """Set the operand's padding to the pad value."""
    mask = w.mask(w.dims(op.operand), only)
    if mask is not None:
        value = w.builder.broadcast_in_dim(op.value, shape_of(op.operand), ())
        op.operands[0] = w.selected(mask, op.operand, value, Padded(w.dims(op.operand)))


def _placed(
    w: Walk, starts: Sequence[SSAValue], dims: Sequence[Dim], window: Sequence[Dim]
) -> tuple[list[SSAValue], list[SSAValue], list[int]]:
    """Return starts at which a window in memory is within the bound, the distances from there to the true starts, and
    the greatest distances.

    So a large value, such as a cache, needs no padding and is updated in place. The true starts are clamped if the last
    possible ones depend on sizes.
    """
    b, zero = w.builder, w.builder.constant(0, "i32")
    inside, before, room = list[SSAValue](), list[SSAValue](), list[int]()
    lasts = [dim.total - part.total for dim, part in zip(dims, window, strict=True)]
    varies = any(last.number is None or dim.padded for last, dim in zip(lasts, dims, strict=True))
    for start, dim, part, last in zip(starts, dims, window, lasts, strict=True):
        least, most = last.range(w.shared.symbols)
        constant = _number(start)
        if varies and not (constant is not None and 0 <= constant <= least):
            start = w.at_most(w.wide(start), last)
            constant = _number(start)
        room.append(max(0, (most if constant is None else constant) + part.size - dim.size))
        inside.append(b.min(start, b.constant(dim.size - part.size, dtype_of(start))) if room[-1] else start)
        before.append(b.convert(b.sub(start, inside[-1]), "i32") if room[-1] else zero)
    return inside, before, room


def _number(start: SSAValue) -> int | None:
    """Return a start that is a constant, else None."""
    return int(number_of(start.owner.value).real) if isinstance(start.owner, ConstantOp) else None


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
    b = w.builder
    inside, before, room = _placed(w, op.operands[1:], operand.dims, window)
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
    inside, before, room = _placed(w, op.operands[2:], dims, window)
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
