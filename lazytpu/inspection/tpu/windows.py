"""Windows of convolutions: how many of their positions lie on elements."""

from __future__ import annotations

import numpy as np

from lazytpu.inspection.tpu.wire import Message


def positions(window: Message, given: int, made: int) -> int:
    """For one dimension of a WindowDimension: in how many places, over all positions of the window on `given` elements,
    it meets an element. `made` is how many positions there are."""
    size, stride, low, _, spread, base, *_ = (window.integer(number) for number in range(1, 7))
    return covered(size, stride, low, spread, base, given, made)


def covered(size: int, stride: int, low: int, spread: int, base: int, given: int, made: int) -> int:
    """The same, of a window of `size` with its elements `spread` apart, which moves by `stride` over elements that are
    `base` apart behind `low` of padding."""
    starts = np.arange(made, dtype=np.int64) * stride - low
    total, last = 0, (given - 1) * base
    for place in range(size):
        at = starts + place * spread
        total += int(np.count_nonzero((at >= 0) & (at <= last) & (at % base == 0)))
    return total
