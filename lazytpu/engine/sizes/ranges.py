"""The sizes of a bucket: those with the bounds of a trace's sizes, at which its views fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from lazytpu.engine.sizes import buckets
from lazytpu.engine.sizes.fitting import Varying
from lazytpu.engine.sizes.skeletons import BEGIN, LEAST, OTHER
from lazytpu.ir.forms import Form, Range, symbol

FEWER = 8  # sizes below a bound that are tried where views leave their tensors at it

Limits = Mapping[int, tuple[int, int | None]]
"The least and the greatest integer at some positions."
Sizes = Mapping[str, int]
Fits = Callable[[Sizes], bool]
"Says whether the views of a trace fit at these sizes."


def bucketed(
    varying: Varying, kinds: np.ndarray, sizes: Sizes, spreads: Sequence[int], limits: Limits
) -> dict[str, Range] | None:
    """The sizes with the same bounds as these; None where one is too small for any. A view may begin anywhere up to the
    bound."""
    symbols: dict[str, Range] = {}
    for (name, size), spread in zip(sizes.items(), spreads, strict=True):
        if kinds[varying.symbols[name]] == BEGIN:
            symbols[name] = 0, buckets.bound(max(size, LEAST), spread)
            continue
        own = _sizes_of(varying, kinds, name)
        shifts = [0, *(shift for form in own if (shift := (form - symbol(name)).number) is not None)]
        low, high = _range(size, max(shifts), min(shifts), spread)
        while low <= size and any(form.at({name: low}) < LEAST for form in own):
            low += 1
        if not low <= size <= high:
            return None
        least, most = limits.get(varying.symbols[name], (0, None))
        symbols[name] = max(low, min(least, size)), high if most is None else min(high, max(most, size))
    return symbols


def _sizes_of(varying: Varying, kinds: np.ndarray, name: str) -> list[Form]:
    """The sizes that are forms of one symbol. The greatest of those n + b decides the bucket, and each must be a size
    that a symbol may stand for."""
    sized = (kinds != OTHER) & (kinds != BEGIN)
    return [form for form, at in varying.varying.items() if form.symbols == {name} and sized[at].any()]


def _range(size: int, most: int, least: int, spread: int) -> Range:
    """The sizes of a bucket: those for which the greatest of them has the same bound."""
    bound = buckets.bound(size + most, spread)
    sizes = range(LEAST, size)
    low = LEAST + bisect_left(sizes, bound, key=lambda lower: buckets.bound(lower + most, spread))
    return max(low, LEAST - least), bound - most


def within_tables(
    sizes: Sizes, symbols: Mapping[str, Range], begins: Collection[str], fits: Fits
) -> dict[str, Range] | None:
    """The ranges that these sizes are in without those at which a view leaves its tensor, as where the script writes to
    a table of the greatest length. Where views fit at the greatest sizes of all, only what fits at no size of the
    others is left out: of a cache that is cut to some of its tokens, both numbers vary. None where there are such sizes
    still. The symbols `begins` say where views begin."""
    highest = _greatest(sizes, symbols, begins, fits)
    joint = highest is not None
    if highest is None:
        highest = {name: high for name, (_, high) in symbols.items()}
    lowest = {name: low for name, (low, _) in symbols.items()}
    beside = [sizes, lowest, highest] if joint and len(symbols) > 1 else [sizes]
    found: dict[str, Range] = {}
    for name, (low, _) in symbols.items():
        size, high = sizes[name], highest[name]

        def possible(other: int, name: str = name, size: int = size) -> bool:
            # All moved alike: of a table and of what is in it, both may be less.
            moved = {x: max(LEAST, at + other - size) for x, at in sizes.items()}
            return any(fits({**others, name: other}) for others in (*beside, moved))

        top = high if joint else size + bisect_left(range(size + 1, high + 1), True, key=lambda n: not possible(n))
        found[name] = low + bisect_left(range(low, size), True, key=possible), top
    highest = {name: high for name, (_, high) in found.items()}
    return found if joint or len(found) == 1 or fits(highest) else None


def _greatest(sizes: Sizes, symbols: Mapping[str, Range], begins: Collection[str], fits: Fits) -> dict[str, int] | None:
    """The greatest sizes of all symbols at which views fit, where one of them may be less than its bound: of what is
    written into a table, there is less than the table has room for, and of a part that may begin later, so much less
    that there are few such buckets. None if there are none."""
    highest = {name: high for name, (_, high) in symbols.items()}
    if fits(highest):
        return highest
    later = {name: min(highest[name], buckets.bound(max(sizes[name], FEWER), 2)) for name in begins}
    for own in (later, {name: sizes[name] for name in begins}) if begins else (later,):
        found = _less_of_one({**highest, **own}, sizes, max([FEWER, *own.values()]), fits)
        if found is not None:
            return _beginning_late(found, highest, begins, fits)
    return None


def _less_of_one(highest: dict[str, int], sizes: Sizes, most: int, fits: Fits) -> dict[str, int] | None:
    """These sizes, or at `most` so many less of one of them, if views fit there; else None."""
    if fits(highest):
        return highest
    for name, high in highest.items() if len(highest) > 1 else ():
        for less in range(high - 1, max(sizes[name], high - most) - 1, -1):
            if fits(found := {**highest, name: less}):
                return found
    return None


def _beginning_late(sizes: dict[str, int], latest: Sizes, begins: Collection[str], fits: Fits) -> dict[str, int]:
    """These sizes where views begin as late as they have room, but not later than at the `latest`."""
    found = dict(sizes)
    for name in begins:
        later = range(sizes[name] + 1, latest[name] + 1)
        found[name] += bisect_left(later, True, key=lambda at, n=name: not fits({**found, n: at}))
    return found
