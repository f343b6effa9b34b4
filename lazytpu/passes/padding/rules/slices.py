"""Slices and pads, at positions in the program and at run-time positions, and updates of slices.

Run-time starts are clamped at the true size first: the op itself clamps at the bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from lazytpu.ir import indexing, shape
from lazytpu.ir.base import TensorOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp, number_of
from lazytpu.ir.forms import Form, form
from lazytpu.ir.types import bitwidth, dtype_of, ints, shape_of
from lazytpu.passes.padding.dims import Dim, Refused
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.strides import every, spread
from lazytpu.passes.padding.walk import Rule, Walk


def slice_(w: Walk, op: TensorOp) -> Sequence[Padded] | None:
    """The first true elements from a static start on; a start that is a size is one of the run."""
    assert isinstance(op, shape.SliceOp)
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
        if not dim.prefix:
            raise Refused(f"a part of the merged dimension {dim} is taken")
        rest = dim.total - high
        if rest.range(w.shared.symbols)[len(rest.symbols) > 1] < 0:  # of two sizes, those are meant that fit
            raise Refused(f"the slice ends at {high}, which may be behind the end {dim.total}")
        if low.number is None:
            if stride != 1:
                raise Refused(f"a slice with steps of {stride} starts at {low}")
            least, most = low.range(w.shared.symbols)
            if (most if len(low.symbols) > 1 else least) < 0:
                raise Refused(f"a slice at {low} may begin before 0")
            if (high - low).number != out[i]:  # its padding may end behind the bound
                room[i] = max(0, min(most, dim.size) + out[i] - dim.size)
            moving[i] = low
        dims.append(w.dim(out[i], (high - low + (stride - 1)) // stride))
    if not moving:
        return [Padded(tuple(dims))]
    b = w.builder
    rest = [0 if i in moving else n for i, n in enumerate(starts)]
    ends = [n if i in moving else m for i, (n, m) in enumerate(zip(shape_of(op.operand), limits, strict=True))]
    value = b.slice(op.operand, rest, ends, [1 if i in moving else n for i, n in enumerate(strides)])
    if any(room):
        value = b.pad(value, w.zero(value), [0] * len(out), room)
    at = [w.number(moving[i]) if i in moving else b.constant(0, "i32") for i in range(len(dims))]
    w.replace(op, b.dynamic_slice(value, at, out), Padded(tuple(dims)))
    return None


Forms = Sequence[Form]


def _slice_of_steps(
    w: Walk, op: shape.SliceOp, stepped: Sequence[int], first: Forms, last: Forms, steps: Forms
) -> None:
    """A slice whose steps along one dimension are a size, such as a diagonal; all others are whole. How many elements
    there are is what the op is annotated with."""
    (along, *more), operand, out = stepped, w.of(op.operand), w.result_dims(op)
    whole = [(low, high) == (form(0), dim.total) for low, high, dim in zip(first, last, operand.dims, strict=True)]
    if more or not all(whole[i] or i == along for i in range(len(whole))):
        raise Refused("a slice with steps that are a size takes a part of another dimension, too")
    if not operand.dims[along].prefix:
        raise Refused(f"a part of the merged dimension {operand.dims[along]} is taken")
    dims = [out[along] if i == along else dim for i, dim in enumerate(operand.dims)]
    w.replace(op, every(w, op.operand, along, first[along], steps[along], out[along].size), Padded(tuple(dims)))


def pad(w: Walk, op: TensorOp) -> Sequence[Padded] | None:
    """What is behind the true elements gets the value that is padded with, first. A `low` that is a size shifts: a
    run-time slice of a longer pad."""
    assert isinstance(op, shape.PadOp)
    operand, out = w.of(op.operand), shape_of(op.results[0])
    lows, highs, interior = (ints(p) for p in (op.low, op.high, op.interior))
    first, last = w.forms(op, "low", lows), w.forms(op, "high", highs)
    steps = [between + 1 for between in w.forms(op, "interior", interior)]
    spaced = [i for i, (dim, step) in enumerate(zip(operand.dims, steps, strict=True)) if _is_spread(dim, step)]
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
    low, high = list(lows), list(highs)
    starts = [b.constant(0, "i32")] * rank
    for i, shift in shifts.items():
        least, low[i] = shift.range(w.shared.symbols)
        high[i] = out[i] - least - shape_of(op.operand)[i]
        starts[i] = w.number(shift * -1 + low[i])
    long = b.pad(op.operand, op.value, low, high, interior)
    w.replace(op, b.dynamic_slice(long, starts, out), Padded(tuple(dims)))
    return None


def _is_spread(dim: Dim, step: Form) -> bool:
    """Whether elements are padded in between, and either they or the padding are sized."""
    return step != form(1) and (step.number is None or dim.padded)


def _spread(w: Walk, op: shape.PadOp, spaced: Sequence[int], first: Forms, last: Forms, steps: Forms) -> None:
    """Padding between the elements of a dimension; none of the others is padded."""
    (along, *more), operand, out = spaced, w.of(op.operand), w.result_dims(op)
    others = [i for i in range(len(steps)) if i != along]
    if more or not all((first[i], last[i], steps[i]) == (form(0), form(0), form(1)) for i in others):
        raise Refused("a sized dimension is padded between its elements, and another one is padded too")
    if not operand.dims[along].prefix:
        raise Refused(f"the merged dimension {operand.dims[along]} is padded between its elements")
    dims = [out[along] if i == along else dim for i, dim in enumerate(operand.dims)]
    made = spread(w, op.operand, along, operand.dims[along], first[along], steps[along], out[along].size, op.value)
    w.replace(op, made, Padded(tuple(dims)))


def _mask_with(w: Walk, op: shape.PadOp, only: Sequence[int]) -> None:
    """Mask the operand with the value that is padded with."""
    mask = w.mask(w.dims(op.operand), only)
    if mask is not None:
        value = w.builder.broadcast_in_dim(op.value, shape_of(op.operand), ())
        op.operands[0] = w.builder.select(mask, op.operand, value)
        w.shared.masks += 1


def clamped(w: Walk, start: SSAValue, last: Form) -> SSAValue:
    """A start, or indices of any shape, of at most `last`. Narrow ones are made wide enough for any size."""
    b = w.builder
    if bitwidth(dtype_of(start)) < 32:
        start = b.convert(start, "i32")
    number = w.number(last, dtype_of(start))
    return b.min(start, b.broadcast_in_dim(number, shape_of(start), ()) if shape_of(start) else number)


def _starts(w: Walk, starts: Sequence[SSAValue], dims: Sequence[Dim], window: Sequence[Dim]) -> list[SSAValue]:
    """Starts of a window in a value of these dimensions, clamped where the last possible one depends on the size."""
    lasts = [dim.total - part.total for dim, part in zip(dims, window, strict=True)]
    if all(last.number is not None and not dim.padded for last, dim in zip(lasts, dims, strict=True)):
        return list(starts)
    found: list[SSAValue] = []
    for start, last in zip(starts, lasts, strict=True):
        known = _number(start)
        fits = known is not None and 0 <= known <= last.range(w.shared.symbols)[0]
        found.append(start if fits else clamped(w, start, last))
    return found


def _number(start: SSAValue) -> int | None:
    """A start that is part of the program."""
    return int(number_of(start.owner.value).real) if isinstance(start.owner, ConstantOp) else None


def _room(w: Walk, starts: Sequence[SSAValue], dims: Sequence[Dim], window: Sequence[Dim]) -> list[int]:
    """By how many elements a window at its last start may end behind the bound, in each dimension: there the op would
    move it."""
    room: list[int] = []
    for start, dim, part in zip(starts, dims, window, strict=True):
        known = _number(start)
        most = (dim.total - part.total).range(w.shared.symbols)[1] if known is None else known
        room.append(max(0, most + part.size - dim.size))
    return room


def _inside(
    w: Walk, starts: Sequence[SSAValue], dims: Sequence[Dim], window: Sequence[Dim], room: Sequence[int]
) -> tuple[list[SSAValue], list[SSAValue]]:
    """Starts at which the whole window lies within the bound, and by how much they are before the real ones. A value
    that is large, such as a cache, need not be padded then, and is updated in place."""
    b = w.builder
    inside, before = list(starts), [b.constant(0, "i32")] * len(starts)
    for i, (start, dim, part) in enumerate(zip(starts, dims, window, strict=True)):
        if room[i]:
            inside[i] = b.min(start, b.constant(dim.size - part.size, dtype_of(start)))
            before[i] = b.convert(b.sub(start, inside[i]), "i32")
    return inside, before


def _window(w: Walk, dims: Sequence[Dim], sizes: Sequence[int], trues: Sequence[Form]) -> list[Dim]:
    """The dimensions of a window: whole ones, and the first elements of others."""
    result: list[Dim] = []
    for dim, size, true in zip(dims, sizes, trues, strict=True):
        if size == dim.size and true == dim.total:
            result.append(dim)
        elif dim.prefix:
            result.append(w.dim(size, true))
        else:
            raise Refused(f"a part of the merged dimension {dim} is read or written")
    return result


def dynamic_slice(w: Walk, op: TensorOp) -> Sequence[Padded] | None:
    assert isinstance(op, indexing.DynamicSliceOp)
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


def dynamic_update_slice(w: Walk, op: TensorOp) -> Sequence[Padded] | None:
    """Where the update is padded, what was there stays: its padding would overwrite true elements."""
    assert isinstance(op, indexing.DynamicUpdateSliceOp)
    b, update = w.builder, w.dims(op.update)
    # An operand of equal elements takes over how an update of its size is padded.
    pairs = zip(w.dims(op.operand), update, strict=True)
    dims = [part if dim.free and (part.size, part.total) == (dim.size, dim.total) else dim for dim, part in pairs]
    window: list[Dim] = []
    masked: list[int] = []
    for i, (dim, part) in enumerate(zip(dims, update, strict=True)):
        whole = part.size == dim.size and part.total == dim.total and (part.factors == dim.factors or part.free)
        if not whole and not (dim.prefix and part.prefix):
            raise Refused(f"a part of the merged dimension {dim} is written")
        if not whole and part.padded:
            masked.append(i)
        window.append(dim if whole else part)
    starts = _starts(w, op.operands[2:], dims, window)
    room = _room(w, starts, dims, window)
    inside, before = _inside(w, starts, dims, window, room)
    mask, written = w.mask(update, masked), op.update
    if mask is not None:  # where there is room, the update is padded, and thus masked
        sizes = shape_of(written)
        written, mask = (_behind(b, value, room, before) for value in (written, mask))
        written = b.select(mask, written, b.dynamic_slice(op.operand, inside, sizes))
        w.shared.masks += 1
    dims = tuple(dim.settled for dim in dims)
    w.replace(op, b.dynamic_update_slice(op.operand, written, inside), Padded(dims))
    return None


def _behind(b: Builder, value: SSAValue, room: Sequence[int], by: Sequence[SSAValue]) -> SSAValue:
    """A value moved to the back, `by` at most as much as there is `room`, with zeros in front."""
    if not any(room):
        return value
    longer = b.pad(value, b.constant(0, dtype_of(value)), room, [0] * len(room))
    starts = [b.sub(b.constant(n, "i32"), shift) if n else shift for n, shift in zip(room, by, strict=True)]
    return b.dynamic_slice(longer, starts, shape_of(value))


RULES: dict[type[TensorOp], Rule] = {
    shape.SliceOp: slice_,
    shape.PadOp: pad,
    indexing.DynamicSliceOp: dynamic_slice,
    indexing.DynamicUpdateSliceOp: dynamic_update_slice,
}
