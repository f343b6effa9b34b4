"""Finding the earlier program that is nearest to a new trace, in a few milliseconds for hundreds of long programs.

A trace is kept as two arrays of hashes, one per record: of its op and source line, and of the layouts it makes. Nearest
is the program with the longest common beginning and end of ops and lines; of equals, the one with the most layouts in
common, and the newest of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazytpu.trace.trie import Record

ALIKE = 16  # programs of the same ops and lines that are compared by their layouts

Hashes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TraceSketch:
    """What is compared of a trace: a hash for each record's op and line, and for its layouts; `path` is one of all ops
    and lines, `first` and `last` are the ends."""

    sites: Hashes
    kinds: Hashes
    path: int
    first: int
    last: int

    @staticmethod
    def of(records: Sequence[Record]) -> TraceSketch:
        """The sketch of a trace that is not empty; 1 µs a record."""
        named = [(r.op, line.file, line.line) if (line := r.line) is not None else (r.op,) for r in records]
        sites = np.array([hash(site) for site in named], np.int64)
        kinds = np.array([hash((r.outs, r.admitted)) for r in records], np.int64)
        return TraceSketch(sites, kinds, hash(sites.tobytes()), int(sites[0]), int(sites[-1]))

    def __len__(self) -> int:
        return len(self.sites)


def edges(one: TraceSketch, other: TraceSketch) -> tuple[int, int]:
    """How many ops and lines two traces have in common at the beginning, and of the rest at the end."""
    if one.path == other.path:
        return len(one), 0
    count = min(len(one), len(other))
    before = _equal(one.sites[:count], other.sites[:count])
    rest = count - before
    return before, _equal(one.sites[::-1][:rest], other.sites[::-1][:rest])


def _equal(one: Hashes, other: Hashes) -> int:
    """How many hashes are the same before the first that is not."""
    first = int((one != other).argmax()) if len(one) else 0
    return first if first or not len(one) or one[0] != other[0] else len(one)


@dataclass(frozen=True, slots=True)
class Near:
    """How near a program is: the share of ops and lines in common, their number at the beginning and at the end, and
    how many layouts agree there."""

    share: float
    before: int
    after: int
    layouts: int


def nearness(one: TraceSketch, other: TraceSketch) -> Near:
    """How near `other` is to `one`."""
    before, after = edges(one, other)
    layouts = int(np.count_nonzero(one.kinds[:before] == other.kinds[:before]))
    if after:
        layouts += int(np.count_nonzero(one.kinds[-after:] == other.kinds[-after:]))
    return Near((before + after) / max(len(one), len(other), 1), before, after, layouts)


def nearest(sketch: TraceSketch, candidates: Iterable[tuple[Any, TraceSketch]]) -> tuple[Any, Near] | None:
    """The nearest of (anything, its sketch), given newest first, and how near it is; None when no program begins or
    ends with the same op and line."""
    best: tuple[Any, Near] | None = None
    alike = 0
    for candidate, other in candidates:
        if sketch.first != other.first and sketch.last != other.last:
            continue  # nothing in common at the ends
        if sketch.path == other.path:
            alike += 1
            if alike > ALIKE:
                break  # many versions that differ in their sizes alone: the newest are near enough
        possible = min(len(sketch), len(other)) / max(len(sketch), len(other), 1)
        if best is not None and possible < best[1].share:
            continue
        near = nearness(sketch, other)
        if best is None or (near.share, near.layouts) > (best[1].share, best[1].layouts):
            best = candidate, near
    return best
