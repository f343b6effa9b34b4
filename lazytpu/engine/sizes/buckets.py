"""The upper bounds of size buckets, each served by one program (`options.buckets`)."""

from __future__ import annotations

from bisect import bisect_left

import torch

from lazytpu.engine.programs.target import target
from lazytpu.options import options

LANES = 128  # elements of the last dimension that a TPU works on at once: an array is laid out in multiples of it
SPREADS = (8, 2, 1)
"""Spacings of the bounds of "auto": 8 stands for powers of eight from 64 on, 2 for powers of two, and 1 for powers of
two and the quarters between them. The bounds of each spacing are also bounds of the next, so an array padded for one is
valid for the next."""

MANY = 3
"""The number of symbols from which quarters are no bounds, as in a server's steps: four bounds for each symbol would
need 64 programs."""

MOST = 4
"""The greatest number of symbols that may have different spacings; more would have too many combinations."""


class OneSize(Exception):
    """Raised where a trace has no program for many sizes: its sizes are compiled in. `place` is the op that needs them
    with its line, such as `fft` at train.py:5; empty if no single op does."""

    def __init__(self, reason: str, place: str = ""):
        super().__init__(f"{place} needs one size: {reason}" if place else reason)
        self.place = place


def active() -> bool:
    """Return whether a program may serve several sizes.

    It may not under `torch.use_deterministic_algorithms`, which promises the same bits in each run. Sums over padding
    are grouped differently, and earlier traces decide which sizes have programs of their own.
    """
    return options.buckets != "off" and not torch.are_deterministic_algorithms_enabled()


def spreads(symbols: int) -> tuple[int, ...]:
    """Return the spacings to try for this number of symbols, widest first. Bounds set by the user have a single
    spacing."""
    if options.buckets != "auto":
        return SPREADS[-1:]
    return SPREADS if symbols < MANY else SPREADS[:-1]


def bound(size: int, spread: int = 1) -> int:
    """Return the least bucket bound that is at least `size`, or `size` itself if there is no such bucket.

    "auto" has four bounds between powers of two, so padding is at most a quarter. On a TPU, multiples of 128 are used
    where they are closer. A `spread` above 1 gives fewer bounds, for programs whose padding costs little.
    """
    buckets = options.buckets
    if buckets == "off" or size < 2:  # empty and broadcast dimensions are part of the structure
        return size
    if not isinstance(buckets, str):
        above = bisect_left(buckets, size)
        return buckets[above] if above < len(buckets) else size
    if spread > 1:
        doubled = (size - 1).bit_length()
        return 1 << (doubled if spread == 2 else max(6, _up(doubled, 3)))
    step = max(1, 1 << max(0, (size - 1).bit_length() - 3))
    by_quarters = _up(size, step)
    return min(by_quarters, _up(size, LANES)) if target().platform == "tpu" else by_quarters


def bound_within(size: int, low: int, high: int | None, spread: int = 1) -> int:
    """Return the bound of `size` for a dimension that has between `low` and `high` elements (None: no upper limit)."""
    bucket = bound(max(size, low), spread) if size > 1 else size
    return bucket if high is None else max(size, min(bucket, high))


def _up(size: int, step: int) -> int:
    """Round `size` up to a multiple of `step`."""
    return -(-size // step) * step
