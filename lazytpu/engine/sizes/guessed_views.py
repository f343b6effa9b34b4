"""What a view of a value is of one that is larger, guessed from the view alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

from lazytpu.trace.value import Layout


class Unknown(Exception):
    """A number cannot be guessed."""


View = tuple[tuple[int, ...], tuple[int, ...], int, Any]


def viewed(view: View, before: Layout, after: Layout, sizes: Mapping[int, int]) -> View:
    """What a view of a value of the layout `before` is of one of the layout `after`. Its dimensions are dimensions of
    the value, parts of one, or several neighbours. A part that starts in the second half of what varies, or ends there,
    does so counted from the end. Of one that is cut the piece varies whose size is among `sizes`. Raises Unknown."""
    size, stride, offset, dtype = view
    if before.key == after.key:
        return view
    if dtype != before.dtype:
        raise Unknown
    dims = [dim for dim in before.memory_order if before.shape[dim] > 1]
    steps = [_Step(before.shape[d], before.stride[d], after.shape[d], after.stride[d]) for d in dims]
    starts: list[int] = []
    moved = 0
    for step in steps:
        start, offset = divmod(offset, step.stride)
        starts.append(start)
        moved += (start if start <= step.size // 2 else start - step.size + step.new_size) * step.new_stride
    new_size, new_stride = list(size), list(stride)
    along: dict[int, list[int]] = {}
    for dim, each in enumerate(stride):
        at = next((i for i, step in enumerate(steps) if each and each % step.stride == 0), None)
        if at is not None:
            along.setdefault(at, []).append(dim)
        elif each and size[dim] > 1:
            raise Unknown
    for at, of_view in along.items():
        pieces = _pieces(steps[at::-1], [(size[dim], stride[dim] // steps[at].stride) for dim in of_view], sizes)
        if pieces is None:
            pieces = [_part(steps[at], starts[at], size[dim], stride[dim] // steps[at].stride) for dim in of_view]
        for dim, (length, times) in zip(of_view, pieces, strict=True):
            new_size[dim], new_stride[dim] = length, times * steps[at].new_stride
    return tuple(new_size), tuple(new_stride), moved + offset, dtype


@dataclass(frozen=True, slots=True)
class _Step:
    """The size and stride of a dimension of more than one element, before and after."""

    size: int
    stride: int
    new_size: int
    new_stride: int


Piece = tuple[int, int]
"The size of a dimension of a view, and by how many elements of a dimension of the value it steps."


def _pieces(outward: Sequence[_Step], pieces: Sequence[Piece], sizes: Mapping[int, int]) -> list[Piece] | None:
    """The pieces of a dimension, if they are all of it, or of it and of those outward of it; else None. One of them
    varies: the first, from those that are closest to one of the `sizes`, that makes them all of it again."""
    order = sorted(range(len(pieces)), key=lambda i: pieces[i][::-1])
    total = 1
    for i in order:
        length, times = pieces[i]
        if times != total and length > 1:
            return None
        total *= length
    whole = list(accumulate([step.size for step in outward], mul))
    if total not in whole:
        return None
    wanted = prod([step.new_size for step in outward[: whole.index(total) + 1]])
    lengths = [length for length, _ in pieces]
    for i in sorted(order, key=lambda i: min(abs(lengths[i] - size) for size in sizes)):
        rest = total // lengths[i]
        if wanted % rest == 0:
            lengths[i] = wanted // rest
            break
    else:
        raise Unknown
    found, times = list(pieces), 1
    for i in order:
        found[i] = lengths[i], times
        times *= lengths[i]
    return found


def _part(step: _Step, start: int, length: int, times: int) -> Piece:
    """A part of a dimension."""
    if length == 1:
        return 1, step.new_size if times == step.size else times
    if length * times > step.size:
        raise Unknown
    if step.size == step.new_size or start > step.size // 2 or length * times <= step.size // 2:
        return length, times
    if times > 1:
        raise Unknown
    return length - step.size + step.new_size, 1
