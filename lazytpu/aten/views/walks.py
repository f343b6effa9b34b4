"""Walks along one axis: which elements of a single dim several nested dims visit."""

from __future__ import annotations

from dataclasses import dataclass

from lazytpu.aten.views.sketch import Sketch
from lazytpu.aten.views.steps import Plan, Shape

# Overlapping dims are read as this many slices at most, else as a gather: a slice is one fused copy, a gather on TPU
# runs element by element.
FEW = 16


@dataclass(frozen=True, slots=True)
class Walk:
    """`count` elements, `step` apart; `labels` are the view's (parts of) dims it stands for, outermost first."""

    count: int
    step: int
    labels: Shape


def unroll(sketch: Sketch, axis: int, offset: int, walks: list[Walk], writing: bool, budget: int = FEW) -> list[Shape]:
    """Replace `axis` by its elements `offset + sum(i * step)`; returns the labels of each axis that took its place.

    Overlapping walks become at most `budget` slices. When `writing`, they come in the view's order.
    """
    walks = _collapsed(walks)
    if not walks:
        sketch.slice(axis, offset, 1)
        return [()]
    if len(walks) == 1:
        (walk,) = walks
        sketch.slice(axis, offset, walk.count, walk.step)
        return [walk.labels]
    outer, inner = walks[0], walks[1:]
    span = _span(inner)
    if span > outer.step:
        return _overlapping(sketch, axis, offset, walks, writing, budget)
    # Cut the axis into rows of `step`, and walk on within one row. Rows may start before `offset` if no walk then wraps
    # from one row into the next; rows that end after the axis need padding.
    length, rows = sketch.shape[axis], outer.count * outer.step
    start = max(0, min(offset, length - rows))
    if offset - start + span > outer.step:
        start = offset
    available = min(rows, length - start)
    sketch.slice(axis, start, available)
    sketch.pad(axis, rows - available)
    sketch.split(axis, (outer.count, outer.step))
    return [outer.labels, *unroll(sketch, axis + 1, offset - start, inner, writing, budget)]


def _span(walks: list[Walk]) -> int:
    """Elements from the first to the last visited."""
    return 1 + sum((walk.count - 1) * walk.step for walk in walks)


def _collapsed(walks: list[Walk]) -> list[Walk]:
    """Walks by descending step, neighbours of the view that continue each other merged: 4 times 6 and 6 times 1 is 24
    times 1."""
    merged: list[Walk] = []
    for walk in sorted(walks, key=lambda w: -w.step):
        outer = merged[-1] if merged else None
        if outer and outer.step == walk.count * walk.step and outer.labels[-1] + 1 == walk.labels[0]:
            walk = Walk(outer.count * walk.count, walk.step, outer.labels + walk.labels)
            merged.pop()
        merged.append(walk)
    return merged


def _overlapping(sketch: Sketch, axis: int, offset: int, walks: list[Walk], writing: bool, budget: int) -> list[Shape]:
    """Walks that meet or interleave: unroll one of them if it is short, else gather."""
    chosen = _to_unroll(walks, budget, writing)
    if chosen is None:
        ordered = sorted(walks, key=lambda w: w.labels)
        sketch.take(axis, offset, tuple(w.count for w in ordered), tuple(w.step for w in ordered))
        return [w.labels for w in ordered]
    rest = [walk for walk in walks if walk is not chosen]
    plans: list[Plan] = []
    labels: list[Shape] = []
    shape = sketch.shape
    for index in range(chosen.count):
        one = Sketch(sketch.shape)
        labels = unroll(one, axis, offset + index * chosen.step, rest, writing, budget // chosen.count)
        shape = one.shape[:axis] + (1,) + one.shape[axis:]
        one.reshape(shape)
        plans.append(one.plan())
    sketch.stack(tuple(plans), shape, axis)
    return [chosen.labels, *labels]


def _to_unroll(walks: list[Walk], budget: int, writing: bool) -> Walk | None:
    """The shortest walk whose unrolling leaves the others nested, by `budget` slices in all."""
    for walk in sorted(walks, key=lambda w: w.count):
        rest = [w for w in walks if w is not walk]
        if walk.count > budget or (writing and not _is_outermost(walk, rest)):
            continue
        if _nested(rest) or _to_unroll(rest, budget // walk.count, writing):
            return walk
    return None


def _is_outermost(walk: Walk, rest: list[Walk]) -> bool:
    """Whether unrolling `walk` in order visits elements in the view's order wherever they meet."""
    return all(walk.labels < other.labels for other in rest)


def _nested(walks: list[Walk]) -> bool:
    """Whether no two indices visit one element, nor interleave: each walk steps over all that is inside it."""
    ordered = sorted(walks, key=lambda w: -w.step)
    return all(_span(ordered[i + 1 :]) <= walk.step for i, walk in enumerate(ordered))
