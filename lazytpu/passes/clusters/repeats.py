"""Finding what repeats in a sequence: the layers of a model, in the order in which their ops were recorded.

A stretch of a sequence has the period p when each element equals the one p places on. The stretch of period 4 in

    x a b c d a b c d a b c y

is `a b c d a b c d a b c`: two whole periods and a part of a third. Cut every p places, beginning anywhere in its first
period, it gives equal pieces; where to begin is for who knows what the elements are (partition.py).

Which periods to look at: at every length 1, 2, 4, … the words of that length are numbered, as a suffix array is made by
doubling, and the distances between one word and the next that is equal are counted. A stretch of period p has most of
its words of length p/2 at that distance. So few periods are tried, and each costs one comparison of the sequence with
itself moved: 30 ms for 10,000 elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Elements from `start` to before `end` that repeat with a period."""

    start: int
    end: int
    period: int

    @property
    def count(self) -> int:
        """How many whole periods it has, wherever the first begins among its spare elements."""
        return (self.end - self.start) // self.period

    @property
    def spared(self) -> int:
        """Elements that need not be looked at once one period is known."""
        return (self.count - 1) * self.period


def stretches(sequence: Sequence[int], least: int) -> list[Stretch]:
    """Stretches of at least two periods, which do not overlap and spare at least `least` elements each, in order.

    Those that spare most are taken first, of equal ones that of the shorter period; what a later one shares with an
    earlier is taken off it.
    """
    elements: Numbers = np.asarray(sequence, np.int64)
    known = [found for period in _periods(elements) for found in _of_period(elements, period)]
    taken: list[Stretch] = []
    while known:
        best = max(known, key=lambda found: (found.spared, -found.period))
        if best.spared < max(1, least):
            break
        taken.append(best)
        known = [part for found in known for part in _without(found, best)]
    return sorted(taken, key=lambda found: found.start)


def _periods(elements: Numbers) -> list[int]:
    """The distances that may be periods, in ascending order."""
    found: set[int] = set()
    words, length = _numbered(elements), 1
    while length <= len(elements) // 2:
        order = np.argsort(words, kind="stable")
        same = words[order][1:] == words[order][:-1]
        distances, counts = np.unique(np.diff(order)[same], return_counts=True)
        # Longer periods have longer words to be known by; of the words of a stretch a quarter at least must agree.
        fitting = (distances >= length) & (distances < 4 * length) & (counts >= np.maximum(1, distances // 4))
        found.update(int(distance) for distance in distances[fitting])
        words = _numbered(words[:-length] * (int(words.max(initial=0)) + 1) + words[length:])
        length *= 2
    return sorted(found)


def _numbered(values: Numbers) -> Numbers:
    """Equal values have equal numbers, from 0."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _of_period(elements: Numbers, period: int) -> list[Stretch]:
    """The longest stretches of one period, of two periods at least."""
    same = np.concatenate(([False], elements[:-period] == elements[period:], [False]))
    edges = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2)
    return [Stretch(int(a), int(b) + period, period) for a, b in edges if b - a >= period]


def _without(found: Stretch, taken: Stretch) -> list[Stretch]:
    """What is left of a stretch where another was taken: parts of two periods at least."""
    if taken.end <= found.start or found.end <= taken.start:
        return [found]
    ends = ((found.start, min(found.end, taken.start)), (max(found.start, taken.end), found.end))
    return [Stretch(a, b, found.period) for a, b in ends if b - a >= 2 * found.period]
