"""From strides to slices, reshapes, transposes and broadcasts.

A view visits element `offset + sum(i[d] * stride[d])` of a dense memory. `plan` writes offset and strides as numbers in
the mixed radix of the memory's own dims. If no digit ever overflows its dim, the dims are independent: a view dim with
one digit is a slice of one memory dim. Where a digit overflows, the dim is merged with its outer neighbour; where a
view dim has several digits (a diagonal), its memory dims are merged. That leaves walks along single axes
(`walks.unroll`).
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from lazytpu.aten.views.plan_builder import PlanBuilder
from lazytpu.aten.views.steps import Plan, Shape
from lazytpu.aten.views.walks import Walk, unroll
from lazytpu.ir.symbolic import Derivation, has_sizes


def plan(
    memory: Shape, size: Shape, stride: Shape, offset: int, writing: bool = False, identities: bool = False
) -> Plan:
    """The steps from a row-major array of shape `memory` to a view of it, which has no dim of size 0.

    A plan for `writing` orders overlapping elements so that the last, in row-major order of the view, wins. With
    `identities`, see `PlanBuilder`.
    Raises ValueError if the view reaches past the memory.
    """
    symbolic = Derivation.active is not None and has_sizes((*memory, *size, *stride, offset))
    cached_plan = _planned if symbolic else _known  # symbolic sizes are no keys
    return cached_plan(memory, size, stride, offset, writing, identities)


def _planned(memory: Shape, size: Shape, stride: Shape, offset: int, writing: bool, identities: bool) -> Plan:
    last = offset + sum((n - 1) * t for n, t in zip(size, stride, strict=True))
    if offset < 0 or last >= prod(memory):
        raise ValueError(
            f"a view of size {list(size)}, stride {list(stride)}, offset {offset} reaches element {last} of a storage "
            f"of {prod(memory)} elements"
        )
    walks, owners = _walks(memory, size, stride)
    groups = _without_overflow(memory, walks, offset)
    builder = PlanBuilder(memory, identities)
    axes = _independent(builder, groups, walks, offset, writing)
    _arrange(builder, axes, owners, size, stride)
    return builder.plan()


_known = lru_cache(maxsize=4096)(_planned)


def _strides(sizes: Shape) -> Shape:
    """The strides of a row-major array."""
    return tuple(prod(sizes[dim + 1 :]) for dim in range(len(sizes)))


def _walks(memory: Shape, size: Shape, stride: Shape) -> tuple[list[Walk], list[int]]:
    """The view's dims as walks, in order, and the dim that each walk belongs to. Dims of size 1 or stride 0 have none.

    A dim that runs over whole dims of the memory is split: a flattened (4, 6) has walks 4 by 6 and 6 by 1.
    """
    walks: list[Walk] = []
    owners: list[int] = []
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        if count == 1 or step == 0:
            continue
        inner: list[tuple[int, int]] = []
        for boundary in reversed(_strides(memory)):
            inner_count, remainder = divmod(boundary, step)
            if remainder == 0 and 1 < inner_count < count and count % inner_count == 0:
                inner.append((inner_count, step))
                count, step = count // inner_count, boundary
        for n, t in [(count, step), *reversed(inner)]:
            walks.append(Walk(n, t, (len(walks),)))
            owners.append(dim)
    return walks, owners


def _digits(number: int, strides: Shape) -> Shape:
    digits: list[int] = []
    for stride in strides:
        digit, number = divmod(number, stride)
        digits.append(digit)
    return tuple(digits)


def _without_overflow(memory: Shape, walks: list[Walk], offset: int) -> list[list[int]]:
    """Groups of adjacent memory dims (without those of size 1), merged until no digit of an address overflows."""
    groups = [[dim] for dim, n in enumerate(memory) if n != 1]
    while True:
        sizes = tuple(prod(memory[dim] for dim in group) for group in groups)
        strides = _strides(sizes)
        reach = list(_digits(offset, strides))
        for walk in walks:
            for k, digit in enumerate(_digits(walk.step, strides)):
                reach[k] += (walk.count - 1) * digit
        over = [k for k, n in enumerate(sizes) if reach[k] >= n]
        if not over:
            return groups
        k = over[-1]
        groups[k - 1 : k + 1] = [groups[k - 1] + groups[k]]


def _independent(
    builder: PlanBuilder, groups: list[list[int]], walks: list[Walk], offset: int, writing: bool
) -> list[Shape]:
    """Merge dims that a walk ties together into one axis, and unroll the walks along it.

    Returns, for each axis of the resulting shape, the walks it stands for, outermost first; none if its size is 1.
    """
    memory = builder.shape
    sizes = tuple(prod(memory[dim] for dim in group) for group in groups)
    strides = _strides(sizes)
    digits = [_digits(walk.step, strides) for walk in walks]
    start = _digits(offset, strides)
    tied = _components(len(groups), digits)
    if all(len(dims) == 1 for dims in tied) and all(len(group) == 1 for group in groups):
        axis_of = [group[0] for group in groups]  # every dim is an axis of its own: keep those of size 1 too
    else:
        builder.reshape(sizes)
        builder.transpose(tuple(k for dims in tied for k in dims))
        builder.reshape(tuple(prod(sizes[k] for k in dims) for dims in tied))
        axis_of = list(range(len(tied)))
    axes: list[list[Shape]] = [[()] for _ in builder.shape]
    simple = [len([1 for d in digits if any(d[k] for k in dims)]) < 2 for dims in tied]
    # Axes with one walk come first: they stay one axis, and their slices merge. The others change the number of axes,
    # so they follow from last to first.
    for index in [i for i, s in enumerate(simple) if s] + [i for i, s in reversed(list(enumerate(simple))) if not s]:
        dims = tied[index]
        local = _strides(tuple(sizes[k] for k in dims))
        steps = [sum(d[k] * t for k, t in zip(dims, local, strict=True)) for d in digits]
        along = [Walk(w.count, step, w.labels) for w, step in zip(walks, steps, strict=True) if step]
        origin = sum(start[k] * t for k, t in zip(dims, local, strict=True))
        axes[axis_of[index]] = unroll(builder, axis_of[index], origin, along, writing)
    return [labels for axis in axes for labels in axis]


def _components(count: int, digits: list[Shape]) -> list[list[int]]:
    """The connected components of groups, where a walk with several digits connects their groups."""
    components = [{k} for k in range(count)]
    for digit in digits:
        touched = {k for k, value in enumerate(digit) if value}
        merged = [component for component in components if component & touched]
        components = [component for component in components if not component & touched]
        components.append(set().union(*merged))
    return sorted(sorted(component) for component in components if component)


def _arrange(builder: PlanBuilder, axes: list[Shape], owners: list[int], size: Shape, stride: Shape) -> None:
    """Bring the axes into the view's order, drop and insert dims of size 1, and broadcast dims of stride 0."""
    units = [axis for axis, labels in enumerate(axes) if not labels]
    moving = {labels[0]: axis for axis, labels in enumerate(axes) if labels}
    if list(moving) != sorted(moving):  # labels of one axis are consecutive: the first is enough
        # The transpose also moves axes of size 1 to where the view has such dims, which saves a reshape.
        order: list[int] = []
        for dim in range(len(size)):
            dim_axes = [moving[label] for label, owner in enumerate(owners) if owner == dim and label in moving]
            order += dim_axes if dim in owners else units[:1]
            units = units if dim in owners else units[1:]
        builder.transpose((*units, *order))
    dims = tuple(dim for dim, (n, t) in enumerate(zip(size, stride, strict=True)) if n == 1 or t != 0)
    narrow = tuple(n if dim in dims else 1 for dim, n in enumerate(size))
    if len(dims) == len(size):
        builder.reshape(size)
    elif builder.shape == narrow:
        builder.broadcast(size, tuple(range(len(size))))
    else:
        builder.reshape(tuple(size[dim] for dim in dims))
        builder.broadcast(size, dims)
