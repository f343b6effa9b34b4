"""Finds repetitions in a sequence: the layers of a model, in the order in which their ops were recorded.

A stretch of a sequence has period p when each element equals the one p positions later. The stretch of period 4 in

    x a b c d a b c d a b c y

is `a b c d a b c d a b c`: two whole periods and part of a third. Cut every p positions, starting anywhere in its first
period, it gives equal pieces; the caller, which knows the elements, chooses where to start (partition.py).

Which periods to try: for every length 1, 2, 4, … the words of that length are numbered, as in building a suffix array
by doubling, and the distances between consecutive equal words are counted. In a stretch of period p, most words of
length p/2 are at distance p. So few periods are tried, each at the cost of one comparison of the sequence with itself
shifted: 30 ms for 10,000 elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The elements [start, end) of a sequence, which repeat with a period."""

    start: int
    end: int
    period: int

    @property
    def count(self) -> int:
        """The number of whole periods."""
        return (self.end - self.start) // self.period

    @property
    def spared(self) -> int:
        """The number of elements in whole periods after the first one."""
        return (self.count - 1) * self.period


def stretches(sequence: Sequence[int], least: int) -> list[Stretch]:
    """Return disjoint stretches of at least two periods that spare at least `least` elements each, in order.

    Chosen greedily: first the stretch that spares the most; of equal ones, the stretch with the shorter period. The
    overlap with a chosen stretch is cut off the others.
    """
    elements: Numbers = np.asarray(sequence, np.int64)
    candidates = [stretch for period in _periods(elements) for stretch in _of_period(elements, period)]
    chosen: list[Stretch] = []
    while candidates:
        best = max(candidates, key=lambda stretch: (stretch.spared, -stretch.period))
        if best.spared < max(1, least):
            break
        chosen.append(best)
        candidates = [piece for stretch in candidates for piece in _without(stretch, best)]
    return sorted(chosen, key=lambda stretch: stretch.start)


def _periods(elements: Numbers) -> list[int]:
    """The candidate periods, in ascending order."""
    periods: set[int] = set()
    words, length = _numbered(elements), 1
    while length <= len(elements) // 2:
        order = np.argsort(words, kind="stable")
        same = words[order][1:] == words[order][:-1]
        distances, counts = np.unique(np.diff(order)[same], return_counts=True)
        # Longer periods are found with longer words. At least a quarter of the words of a stretch must agree.
        fitting = (distances >= length) & (distances < 4 * length) & (counts >= np.maximum(1, distances // 4))
        periods.update(int(distance) for distance in distances[fitting])
        words = _numbered(words[:-length] * (int(words.max(initial=0)) + 1) + words[length:])
        length *= 2
    return sorted(periods)


def _numbered(values: Numbers) -> Numbers:
    """Return numbers from 0 on in place of the values, equal for equal values."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _of_period(elements: Numbers, period: int) -> list[Stretch]:
    """The maximal stretches of a given period that have at least two periods."""
    same = np.concatenate(([False], elements[:-period] == elements[period:], [False]))
    edges = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2)
    return [Stretch(int(a), int(b) + period, period) for a, b in edges if b - a >= period]


def _without(stretch: Stretch, chosen: Stretch) -> list[Stretch]:
    """The parts of a stretch outside a chosen one, if they have at least two periods."""
    if chosen.end <= stretch.start or stretch.end <= chosen.start:
        return [stretch]
    pieces = ((stretch.start, min(stretch.end, chosen.start)), (max(stretch.start, chosen.end), stretch.end))
    return [Stretch(a, b, stretch.period) for a, b in pieces if b - a >= 2 * stretch.period]
