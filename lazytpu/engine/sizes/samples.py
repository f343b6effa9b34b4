"""Sizes at which a program is looked at for its forms. Symbols that are in `begins` say where a view begins, which may
be at 0."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations

from lazytpu.engine.sizes.skeletons import LEAST
from lazytpu.ir.forms import Range

FEW = 4  # sizes of each symbol that show a form
MORE = 8  # sizes of each symbol at which a program is looked at where a few show no form


Symbols = Mapping[str, Range]


def samples(symbols: Symbols, begins: Collection[str] = ()) -> list[dict[str, int]]:
    """The bounds, in the end, and so many below that forms are found for each symbol and each pair."""
    high = {name: top for name, (_, top) in symbols.items()}
    below: dict[str, list[int]] = {}
    for name, (low, top) in symbols.items():
        least = _least(name, low, begins)
        inside = [s for s in (top - 1, low, (low + top) // 2, low - 1, low + 1, top - 2, top - 3) if s >= least]
        below[name] = [s for s in dict.fromkeys(inside) if s != top][:3]
    sizes = [{**high, name: size} for name, tried in below.items() for size in tried]
    sizes += [{**high, x: below[x][0], y: below[y][0]} for x, y in combinations(high, 2) if below[x] and below[y]]
    return [*sizes, {name: (tried or [high[name]])[-1] for name, tried in below.items()}, high]


def more_samples(symbols: Symbols, begins: Collection[str] = ()) -> list[dict[str, int]]:
    """More of them: a row of sizes of each symbol, with all remainders of usual strides; of few sizes, some that are
    larger."""
    high = {name: top for name, (_, top) in symbols.items()}
    least = {name: _least(name, low, begins) for name, (low, _) in symbols.items()}
    rows = {name: range(max(least[name], top - MORE), max(top, least[name] + FEW)) for name, top in high.items()}
    return [*({**high, name: size} for name, row in rows.items() for size in row if size != high[name]), high]


def greatest(symbols: Symbols, count: int, begins: Collection[str] = ()) -> list[dict[str, int]]:
    """Those at which it may be looked at to tell two forms apart: so many sizes of each symbol."""
    high = {name: top for name, (_, top) in symbols.items()}
    least = {name: max(low, _least(name, low, begins)) for name, (low, _) in symbols.items()}
    rows = {name: range(max(least[name], top - count), top) for name, top in high.items()}
    return [{**high, name: size} for name, row in rows.items() for size in row]


def _least(name: str, low: int, begins: Collection[str]) -> int:
    return min(low, LEAST) if name in begins else LEAST
