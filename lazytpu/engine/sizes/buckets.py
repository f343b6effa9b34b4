"""The bounds that programs for many sizes are made for (`options.buckets`)."""

from __future__ import annotations

from bisect import bisect_left

import torch

from lazytpu.engine.programs.target import target
from lazytpu.options import options

LANES = 128  # elements of the last dimension that a TPU works on at once: an array is laid out in multiples of it
SPREADS = (8, 2, 1)
"""How far apart the bounds of "auto" are: powers of eight from 64 on; powers of two; those with quarters between
them. All of one are among those of the next, so an array of one is an array of the next."""

MANY = 3
"Symbols of which no quarters are told apart, as in the steps of a server: four bounds of each would be 64 programs."

MOST = 4
"Symbols of which one has other bounds than another: of more there would be too many."


def active() -> bool:
    """Whether programs may be made for more than one size: not while the user wants the same bits in each run
    (`torch.use_deterministic_algorithms`), since sums over padding are grouped in another way, and which sizes have
    programs of their own depends on what came before."""
    return options.buckets != "off" and not torch.are_deterministic_algorithms_enabled()


def spreads(symbols: int) -> tuple[int, ...]:
    """How far apart bounds may be where so many symbols vary, the farthest first. Those of the user are as they are."""
    if options.buckets != "auto":
        return SPREADS[-1:]
    return SPREADS if symbols < MANY else SPREADS[:-1]


def bound(size: int, spread: int = 1) -> int:
    """The bound of the bucket that a size is in, at least as large: `size` itself where there is none, as for all sizes
    when buckets are off.

    "auto" has four bounds to each power of two, which is at most a quarter of waste; on a TPU also the multiples of 128
    where these are closer. With another of `SPREADS` it has fewer, for programs that these sizes cost little.
    """
    buckets = options.buckets
    if buckets == "off" or size < 2:  # nothing, and what broadcasts, are kinds of their own
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
    """The same for a dimension that has at least `low` and at most `high` elements."""
    found = bound(max(size, low), spread) if size > 1 else size
    return found if high is None else max(size, min(found, high))


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
