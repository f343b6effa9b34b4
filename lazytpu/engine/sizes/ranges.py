"""The size ranges of a bucket: the sizes with the same bounds as a trace's sizes, at which its views fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from lazytpu.engine.sizes import buckets
from lazytpu.engine.sizes.fitting import Varying
from lazytpu.engine.sizes.skeletons import BEGIN, OTHER
from lazytpu.ir.forms import Form, Range, symbol
from lazytpu.ir.symbolic import MIN_SYMBOL

FEWER = 8  # sizes below a bound that are tried where views leave their tensors at it

Limits = Mapping[int, tuple[int, int | None]]
"""The least and the greatest integer at each limited position."""
Sizes = Mapping[str, int]
Fits = Callable[[Sizes], bool]
"""Returns whether the views of a trace fit at these sizes."""


def bucketed(
    varying: Varying, kinds: np.ndarray, sizes: Sizes, spreads: Sequence[int], limits: Limits
) -> dict[str, Range] | None:
    """Return the ranges of sizes with the same bounds as `sizes`, or None if one is too small to be symbolic.

    A symbol that is the start of a view ranges from 0 to its bound.
    """
    symbols: dict[str, Range] = {}
    for (name, size), spread in zip(sizes.items(), spreads, strict=True):
        if kinds[varying.symbols[name]] == BEGIN:
            symbols[name] = 0, buckets.bound(max(size, MIN_SYMBOL), spread)
            continue
        tensor_sizes = _sizes_of(varying, kinds, name)
        shifts = [0, *(shift for form in tensor_sizes if (shift := (form - symbol(name)).number) is not None)]
        low, high = _range(size, max(shifts), min(shifts), spread)
        while low <= size and any(form.at({name: low}) < MIN_SYMBOL for form in tensor_sizes):
            low += 1
        if not low <= size <= high:
            return None
        least, most = limits.get(varying.symbols[name], (0, None))
        symbols[name] = max(low, min(least, size)), high if most is None else min(high, max(most, size))
    return symbols


def _sizes_of(varying: Varying, kinds: np.ndarray, name: str) -> list[Form]:
    """Return the tensor sizes that are expressions of this symbol alone.

    Among expressions n + b, the one with the greatest b decides the bucket. Each must be a size that a symbol may stand
    for.
    """
    sized = (kinds != OTHER) & (kinds != BEGIN)
    return [form for form, at in varying.varying.items() if form.symbols == {name} and sized[at].any()]


def _range(size: int, most: int, least: int, spread: int) -> Range:
    """Return the range of `size` in which `size + most` keeps its bound and `size + least` is at least `MIN_SYMBOL`."""
    bound = buckets.bound(size + most, spread)
    sizes = range(MIN_SYMBOL, size)
    low = MIN_SYMBOL + bisect_left(sizes, bound, key=lambda lower: buckets.bound(lower + most, spread))
    return max(low, MIN_SYMBOL - least), bound - most


def within_tables(
    sizes: Sizes, symbols: Mapping[str, Range], begins: Collection[str], fits: Fits
) -> dict[str, Range] | None:
    """Return the ranges of `symbols` without the sizes at which a view leaves its tensor; None if some remain.

    An example is a script that writes to a table of the greatest length. If views fit at the greatest sizes of all
    symbols together, a range only loses sizes that fit with no sizes of the other symbols. This serves a cache that is
    sliced to some of its tokens: both numbers vary. The symbols `begins` are starts of views.
    """
    highest = _greatest(sizes, symbols, begins, fits)
    joint = highest is not None
    if highest is None:
        highest = {name: high for name, (_, high) in symbols.items()}
    lowest = {name: low for name, (low, _) in symbols.items()}
    beside = [sizes, lowest, highest] if joint and len(symbols) > 1 else [sizes]
    ranges: dict[str, Range] = {}
    for name, (low, _) in symbols.items():
        size, high = sizes[name], highest[name]

        def possible(other: int, name: str = name, size: int = size) -> bool:
            # Shift all sizes equally: a table and its contents may both be smaller.
            moved = {x: max(MIN_SYMBOL, at + other - size) for x, at in sizes.items()}
            return any(fits({**neighbours, name: other}) for neighbours in (*beside, moved))

        top = high if joint else size + bisect_left(range(size + 1, high + 1), True, key=lambda n: not possible(n))
        ranges[name] = low + bisect_left(range(low, size), True, key=possible), top
    highest = {name: high for name, (_, high) in ranges.items()}
    return ranges if joint or len(ranges) == 1 or fits(highest) else None


def _greatest(sizes: Sizes, symbols: Mapping[str, Range], begins: Collection[str], fits: Fits) -> dict[str, int] | None:
    """Return the greatest sizes of all symbols at which views fit together, or None.

    One symbol may have to be smaller than its bound, such as the length of data written into a table. For views that
    may begin later it may have to be so much smaller that there are few such buckets.
    """
    highest = {name: high for name, (_, high) in symbols.items()}
    if fits(highest):
        return highest
    later = {name: min(highest[name], buckets.bound(max(sizes[name], FEWER), 2)) for name in begins}
    for begin_sizes in (later, {name: sizes[name] for name in begins}) if begins else (later,):
        fitting = _less_of_one({**highest, **begin_sizes}, sizes, max([FEWER, *begin_sizes.values()]), fits)
        if fitting is not None:
            return _beginning_late(fitting, highest, begins, fits)
    return None


def _less_of_one(highest: dict[str, int], sizes: Sizes, most: int, fits: Fits) -> dict[str, int] | None:
    """Return these sizes, or with one of them reduced by at most `most`, if views fit there; else None."""
    if fits(highest):
        return highest
    for name, high in highest.items() if len(highest) > 1 else ():
        for less in range(high - 1, max(sizes[name], high - most) - 1, -1):
            if fits(reduced := {**highest, name: less}):
                return reduced
    return None


def _beginning_late(sizes: dict[str, int], latest: Sizes, begins: Collection[str], fits: Fits) -> dict[str, int]:
    """Return these sizes with each start of a view as late as fits, at most as in `latest`."""
    latest_fitting = dict(sizes)
    for name in begins:
        later = range(sizes[name] + 1, latest[name] + 1)
        latest_fitting[name] += bisect_left(later, True, key=lambda at, n=name: not fits({**latest_fitting, n: at}))
    return latest_fitting
