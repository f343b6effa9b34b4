"""Windows of convolutions: count the taps that fall on elements."""

from __future__ import annotations

import numpy as np

from lazytpu.inspection.tpu.wire import Message


def positions(window: Message, elements: int, places: int) -> int:
    """Return the number of taps that fall on elements in the dimension of a WindowDimension, over all `places`
    positions of the window on `elements` elements."""
    size, stride, low, _, spread, base, *_ = (window.integer(number) for number in range(1, 7))
    return covered(size, stride, low, spread, base, elements, places)


def covered(size: int, stride: int, low: int, spread: int, base: int, elements: int, places: int) -> int:
    """Do the same for a window of `size` taps, `spread` apart, that moves by `stride` over elements that are `base`
    apart, after `low` of padding."""
    starts = np.arange(places, dtype=np.int64) * stride - low
    total, last = 0, (elements - 1) * base
    for tap in range(size):
        at = starts + tap * spread
        total += int(np.count_nonzero((at >= 0) & (at <= last) & (at % base == 0)))
    return total
