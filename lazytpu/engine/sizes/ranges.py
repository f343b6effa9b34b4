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

Limits = Mapping[int, tuple[int, int | None]]
"""The least and the greatest integer at each limited position."""
Sizes = Mapping[str, int]
Fits = Callable[[Sizes], bool]
"""Returns whether the views of a trace fit at these sizes."""


def bucketed(
    varying: Varying, kinds: np.ndarray, sizes: Sizes, spreads: Sequence[int], limits: Limits
) -> dict[str, Range] | None:
    """Return the ranges of sizes with the same bounds as `sizes`, or None if one is too small to be symbolic.

    A symbol that is the start of a view ranges from 0 to its bound. Many sizes have one range.
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
    begins = [name for name, at in varying.symbols.items() if kinds[at] == BEGIN]
    return _alike(symbols, begins) if varying.parts or len(sizes) > buckets.MOST else symbols


def _alike(symbols: Mapping[str, Range], begins: Collection[str]) -> dict[str, Range]:
    """Return one range for all sizes, from the least to the greatest of their ranges.

    A bucket for each combination of the bounds of many sizes or of parts, such as the tokens of each expert, would have
    few traces. The symbols `begins` are starts of views.
    """
    ranges = [bounds for name, bounds in symbols.items() if name not in begins]
    if not ranges:
        return dict(symbols)
    common = min(low for low, _ in ranges), max(high for _, high in ranges)
    return {name: bounds if name in begins else common for name, bounds in symbols.items()}


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


def within_tables(sizes: Sizes, symbols: Mapping[str, Range], begins: Collection[str], fits: Fits) -> dict[str, Range]:
    """Return the ranges of `symbols` without the sizes at which a view leaves its tensor.

    An example is a script that writes to a table of the greatest length. The greatest sizes fit together. A range only
    loses lower sizes that fit with none of the tried sizes of the other symbols: a cache that is sliced to some of its
    tokens has two numbers that vary. The symbols `begins` are starts of views.
    """
    highest = _greatest(sizes, symbols, begins, fits)
    lowest = {name: low for name, (low, _) in symbols.items()}
    ranges: dict[str, Range] = {}
    for name, (low, _) in symbols.items():
        size = sizes[name]

        def possible(other: int, name: str = name, size: int = size) -> bool:
            # Shift all sizes equally: a table and its contents may both be smaller.
            moved = {x: max(MIN_SYMBOL, at + other - size) for x, at in sizes.items()}
            return any(fits({**neighbours, name: other}) for neighbours in (sizes, lowest, highest, moved))

        ranges[name] = low + bisect_left(range(low, size), True, key=possible), highest[name]
    return ranges


def _greatest(sizes: Sizes, symbols: Mapping[str, Range], begins: Collection[str], fits: Fits) -> dict[str, int]:
    """Return the greatest sizes of all symbols at which views fit together, found by raising one after the other.

    The starts of views are raised last: a longer view may have to begin earlier.
    """
    highest = {name: high for name, (_, high) in symbols.items()}
    if fits(highest):
        return highest
    fitting, before = dict(sizes), dict[str, int]()
    while fitting != before:  # a table and its contents are raised in turns
        before = dict(fitting)
        for name in sorted(symbols, key=lambda name: name in begins):
            higher = range(fitting[name] + 1, highest[name] + 1)
            fitting[name] += bisect_left(higher, True, key=lambda at, n=name: not fits({**fitting, n: at}))
    return fitting
