"""Walks along one axis: the elements of a single dim that several nested dims visit."""

from __future__ import annotations

from dataclasses import dataclass

from lazytpu.aten.views.plan_builder import PlanBuilder
from lazytpu.aten.views.steps import Plan, Shape

# Overlapping dims are read as at most this many slices, else as a gather. A slice is one fused copy; a gather runs
# element by element on a TPU.
FEW = 16


@dataclass(frozen=True, slots=True)
class Walk:
    """`count` elements, `step` apart. `labels` are the view's (parts of) dims it stands for, outermost first."""

    count: int
    step: int
    labels: Shape


def unroll(
    builder: PlanBuilder, axis: int, offset: int, walks: list[Walk], writing: bool, budget: int = FEW
) -> list[Shape]:
    """Replace `axis` by its elements `offset + sum(i * step)`. Returns the labels of each axis that replaces it.

    Overlapping walks become at most `budget` slices, in the view's order if `writing`.
    """
    walks = _collapsed(walks)
    if not walks:
        builder.slice(axis, offset, 1)
        return [()]
    if len(walks) == 1:
        (walk,) = walks
        builder.slice(axis, offset, walk.count, walk.step)
        return [walk.labels]
    outer, inner = walks[0], walks[1:]
    span = _span(inner)
    if span > outer.step:
        return _overlapping(builder, axis, offset, walks, writing, budget)
    # Split the axis into rows of `step` and continue within a row. Rows may start before `offset` if no walk then wraps
    # into the next row; rows that reach past the axis need padding.
    length, rows = builder.shape[axis], outer.count * outer.step
    start = max(0, min(offset, length - rows))
    if offset - start + span > outer.step:
        start = offset
    available = min(rows, length - start)
    builder.slice(axis, start, available)
    builder.pad(axis, rows - available)
    builder.split(axis, (outer.count, outer.step))
    return [outer.labels, *unroll(builder, axis + 1, offset - start, inner, writing, budget)]


def _span(walks: list[Walk]) -> int:
    """The number of elements from the first to the last visited."""
    return 1 + sum((walk.count - 1) * walk.step for walk in walks)


def _collapsed(walks: list[Walk]) -> list[Walk]:
    """Walks by descending step. Adjacent dims of the view that continue each other are merged: 4 by 6 and 6 by 1 is
    24 by 1."""
    merged: list[Walk] = []
    for walk in sorted(walks, key=lambda w: -w.step):
        outer = merged[-1] if merged else None
        if outer and outer.step == walk.count * walk.step and outer.labels[-1] + 1 == walk.labels[0]:
            walk = Walk(outer.count * walk.count, walk.step, outer.labels + walk.labels)
            merged.pop()
        merged.append(walk)
    return merged


def _overlapping(
    builder: PlanBuilder, axis: int, offset: int, walks: list[Walk], writing: bool, budget: int
) -> list[Shape]:
    """Walks that overlap or interleave: unroll one of them if it is short, else gather."""
    chosen = _to_unroll(walks, budget, writing)
    if chosen is None:
        ordered = sorted(walks, key=lambda w: w.labels)
        builder.take(axis, offset, tuple(w.count for w in ordered), tuple(w.step for w in ordered))
        return [w.labels for w in ordered]
    other_walks = [walk for walk in walks if walk is not chosen]
    plans: list[Plan] = []
    labels: list[Shape] = []
    shape = builder.shape
    for index in range(chosen.count):
        slice_ = PlanBuilder(builder.shape)
        labels = unroll(slice_, axis, offset + index * chosen.step, other_walks, writing, budget // chosen.count)
        shape = slice_.shape[:axis] + (1,) + slice_.shape[axis:]
        slice_.reshape(shape)
        plans.append(slice_.plan())
    builder.stack(tuple(plans), shape, axis)
    return [chosen.labels, *labels]


def _to_unroll(walks: list[Walk], budget: int, writing: bool) -> Walk | None:
    """The shortest walk whose unrolling leaves the others nested, with at most `budget` slices in all."""
    for walk in sorted(walks, key=lambda w: w.count):
        other_walks = [w for w in walks if w is not walk]
        if walk.count > budget or (writing and not _is_outermost(walk, other_walks)):
            continue
        if _nested(other_walks) or _to_unroll(other_walks, budget // walk.count, writing):
            return walk
    return None


def _is_outermost(walk: Walk, rest: list[Walk]) -> bool:
    """Whether unrolling `walk` in order visits elements in the view's order wherever they overlap."""
    return all(walk.labels < other.labels for other in rest)


def _nested(walks: list[Walk]) -> bool:
    """Whether walks neither overlap nor interleave: each steps over the whole span of those inside it."""
    ordered = sorted(walks, key=lambda w: -w.step)
    return all(_span(ordered[i + 1 :]) <= walk.step for i, walk in enumerate(ordered))
