"""Search for the earlier program nearest to a new trace, in a few milliseconds for hundreds of long programs.

A trace is stored as two arrays of hashes, one hash per record: of its op and source line, and of its layouts. The
nearest program has the longest common beginning and end of ops and lines. Among equals it has the most common layouts,
and then is the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazytpu.trace.trie import Record

ALIKE = 16  # programs with the same ops and lines whose layouts are compared
LONGER = 3  # how many times as long a trace may be that extends another: one with two forward calls has twice the ops
KEPT = 0.9  # minimal share of the ops and lines of a trace in one that extends it

Hashes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TraceSketch:
    """The data of a trace for comparisons: hashes of each record's op and line (`sites`), and of its layouts (`kinds`).

    `path` is the hash of all ops and lines; `first` and `last` are the hashes of the first and last record.
    """

    sites: Hashes
    kinds: Hashes
    path: int
    first: int
    last: int

    @staticmethod
    def of(records: Sequence[Record]) -> TraceSketch:
        """Return the sketch of a nonempty trace, in 1 µs per record."""
        named = [(r.op, line.file, line.line) if (line := r.line) is not None else (r.op,) for r in records]
        sites = np.array([hash(site) for site in named], np.int64)
        kinds = np.array([hash((r.outs, r.admitted)) for r in records], np.int64)
        return TraceSketch(sites, kinds, hash(sites.tobytes()), int(sites[0]), int(sites[-1]))

    def __len__(self) -> int:
        return len(self.sites)


def edges(one: TraceSketch, other: TraceSketch) -> tuple[int, int]:
    """Return the number of common leading ops and lines of two traces, and of common trailing ones among the others."""
    if one.path == other.path:
        return len(one), 0
    count = min(len(one), len(other))
    before = _equal(one.sites[:count], other.sites[:count])
    remaining = count - before
    return before, _equal(one.sites[::-1][:remaining], other.sites[::-1][:remaining])


def _equal(one: Hashes, other: Hashes) -> int:
    """Return the number of equal leading hashes."""
    first = int((one != other).argmax()) if len(one) else 0
    return first if first or not len(one) or one[0] != other[0] else len(one)


@dataclass(frozen=True, slots=True)
class Near:
    """The similarity of a program: the share of common ops and lines, the numbers of leading and trailing ones, and the
    number of equal layouts among them."""

    share: float
    before: int
    after: int
    layouts: int


def nearness(one: TraceSketch, other: TraceSketch) -> Near:
    """Return the similarity of two traces."""
    before, after = edges(one, other)
    layouts = int(np.count_nonzero(one.kinds[:before] == other.kinds[:before]))
    if after:
        layouts += int(np.count_nonzero(one.kinds[-after:] == other.kinds[-after:]))
    return Near((before + after) / max(len(one), len(other), 1), before, after, layouts)


def extends(one: TraceSketch, other: TraceSketch) -> bool:
    """Return whether one of two traces has almost all ops and lines of the other, and is not much longer: a step with a
    further call of its model, say, whose backward pass lies between the common ends."""
    shorter, longer = sorted((one, other), key=len)
    return len(longer) <= LONGER * len(shorter) and bool(np.isin(shorter.sites, longer.sites).mean() >= KEPT)


def nearest(sketch: TraceSketch, candidates: Iterable[tuple[Any, TraceSketch]]) -> tuple[Any, Near] | None:
    """Return the nearest of the candidates, given newest first with their sketches, and its similarity.

    Return None if no candidate begins or ends with the same op and line.
    """
    best: tuple[Any, Near] | None = None
    same_path = 0
    for candidate, candidate_sketch in candidates:
        if sketch.first != candidate_sketch.first and sketch.last != candidate_sketch.last:
            continue  # the ends differ
        if sketch.path == candidate_sketch.path:
            same_path += 1
            if same_path > ALIKE:
                break  # many versions that differ only in sizes: the newest suffice
        possible = min(len(sketch), len(candidate_sketch)) / max(len(sketch), len(candidate_sketch), 1)
        if best is not None and possible < best[1].share:
            continue
        near = nearness(sketch, candidate_sketch)
        if best is None or (near.share, near.layouts) > (best[1].share, best[1].layouts):
            best = candidate, near
    return best
