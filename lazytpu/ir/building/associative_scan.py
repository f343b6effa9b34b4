"""Scans by an associative function, in a tree of logarithmic depth rather than a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from xdsl.ir import SSAValue

from lazytpu.ir.building.regions import RegionMethods
from lazytpu.ir.types import shape_of

Combine: TypeAlias = "Callable[[Sequence[SSAValue], Sequence[SSAValue]], Sequence[SSAValue]]"
"""combine(left, right) -> the combined values, of the same types, for any size of the first dimension."""


def build_associative_scan(b: RegionMethods, combine: Combine, xs: Sequence[SSAValue]) -> list[SSAValue]:
    """Scan as `jax.lax.associative_scan` does: combine pairs of neighbours and scan these, which gives every second
    result; combined with the values in between, these give the others."""
    length = shape_of(xs[0])[0]
    if length < 2:
        return list(xs)
    pairs = combine(_every_other(b, xs, 0, length - 1), _every_other(b, xs, 1, length))
    odd = build_associative_scan(b, combine, pairs)
    between = _every_other(b, xs, 2, length)
    before = odd if length % 2 else [b.slice(x, *_range(x, 0, shape_of(x)[0] - 1, 1)) for x in odd]
    first = [b.slice(x, *_range(x, 0, 1, 1)) for x in xs]
    if length == 2:
        return [b.concatenate(pair, 0) for pair in zip(first, odd, strict=True)]
    even = [b.concatenate(pair, 0) for pair in zip(first, combine(before, between), strict=True)]
    return [_interleaved(b, *pair) for pair in zip(even, odd, strict=True)]


def _every_other(b: RegionMethods, xs: Sequence[SSAValue], start: int, stop: int) -> list[SSAValue]:
    return [b.slice(x, *_range(x, start, stop, 2)) for x in xs]


def _range(x: SSAValue, start: int, stop: int, step: int) -> tuple[list[int], list[int], list[int]]:
    """The starts, limits and strides of a slice of the first dimension."""
    sizes = list(shape_of(x)[1:])
    return [start, *(0 for _ in sizes)], [stop, *sizes], [step, *(1 for _ in sizes)]


def _interleaved(b: RegionMethods, even: SSAValue, odd: SSAValue) -> SSAValue:
    """even[0], odd[0], even[1], odd[1], …; there may be one more of the even ones."""
    (count, *sizes), longer = shape_of(odd), shape_of(even)[0]
    sides = [b.slice(even, *_range(even, 0, count, 1)), odd]
    joined = b.concatenate([b.reshape(side, (count, 1, *sizes)) for side in sides], 1)
    pairs = b.reshape(joined, (2 * count, *sizes))
    return pairs if longer == count else b.concatenate([pairs, b.slice(even, *_range(even, count, longer, 1))], 0)
