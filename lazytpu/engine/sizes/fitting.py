"""Forms that are these numbers in all samples: what varies between traces of one skeleton, and how.

A size that is no form of the symbols found so far becomes a symbol. Two samples fit many forms, so the simplest is
taken; what it gets wrong, the next sample shows. A wrong form is never a wrong result: a program serves a trace only
if all forms give exactly its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, permutations
from types import MappingProxyType
from typing import Any

import numpy as np

from lazytpu.engine.sizes.results import LARGEST
from lazytpu.engine.sizes.skeletons import BEGIN, COUNT, LEAST, OTHER, SIZE
from lazytpu.ir.forms import Form, form, symbol
from lazytpu.ir.symbolic import Derivation

NAMES = ("n", "m", "k", "j", "i", "h")
"The symbols of a trace, in the order in which they are found; more make no program of many sizes."
SURE = 5
"Samples of which the place where a view begins may be any form."
FAR = 3 << 16
ORDER = (COUNT, SIZE, BEGIN, OTHER)
LOWEST = {COUNT: LEAST, SIZE: LEAST, BEGIN: 0, OTHER: LEAST}
"The least that a symbol of a kind stands for."


@dataclass(frozen=True)
class Varying:
    """The integers of traces with one skeleton as forms. `fixed` are the integers of one sample, and `varying` their
    positions that differ, by form. A symbol is the integer at its position in `symbols`."""

    fixed: np.ndarray
    symbols: dict[str, int]
    varying: dict[Form, np.ndarray]
    constant: np.ndarray
    "Which positions have the same integer in all traces."

    def solved(self, integers: np.ndarray) -> dict[str, int] | None:
        """The sizes at which the forms give these integers; None if there are none."""
        if (integers != self.fixed)[self.constant].any():
            return None
        sizes = {name: int(integers[position]) for name, position in self.symbols.items()}
        for size, positions in self.varying.items():
            if (integers[positions] != size.at(sizes)).any():
                return None
        return sizes

    def at(self, sizes: Mapping[str, int]) -> list[int]:
        """The integers at these sizes."""
        integers: list[int] = self.fixed.tolist()
        for size, positions in self.varying.items():
            number = size.at(sizes)  # which may be more than 64 bits
            for position in positions.tolist():
                integers[position] = number
        return integers

    def symbolic(self, derivation: Derivation) -> list[Any]:
        """The integers, of which those that vary are sizes of a derivation."""
        integers: list[Any] = self.fixed.tolist()
        for size, positions in self.varying.items():
            for position in positions.tolist():
                integers[position] = derivation.size(size)
        return integers

    def __str__(self) -> str:
        return "; ".join(f"{size}: {' '.join(map(str, positions))}" for size, positions in self.varying.items())


class NoForm(Exception):
    """An integer is no form of the symbols."""


class Fitting:
    """Forms of integers, chosen one after the other: `table` are those of some samples, i64[samples, integers]. A size
    that is no form of the symbols so far becomes one, also where an op is given it before a tensor has it.

    With `rising` no size is less where a symbol is more: an array has room for the greatest sizes of all. `follows` are
    the columns of what is made of others, where that is known: no other size is another but for a number, or a product;
    it only was in these samples."""

    def __init__(
        self,
        table: np.ndarray,
        kinds: np.ndarray,
        rising: bool = False,
        follows: Collection[tuple[int, ...]] | None = None,
        symbols: Mapping[str, int] = MappingProxyType({}),
        names: Sequence[str] = NAMES,
    ) -> None:
        self.table, self.kinds, self.symbols = table, kinds, dict[str, int]()
        self._rising, self._follows, self._names = rising, follows, names
        self._sizes = set(map(tuple, table.T[kinds == SIZE].tolist()))
        self._columns = dict[str, np.ndarray]()
        self._known = dict[tuple[int, ...], Form]()
        for name, at in symbols.items():
            self._begin(name, at)

    def sizes(self, row: int) -> dict[str, int]:
        """The symbols in a sample."""
        return {name: int(self.table[row, at]) for name, at in self.symbols.items()}

    def learn(self, position: int, size: Form) -> None:
        """The integer at a position has this form, and so have the ones like it behind it."""
        key = self._column(position)
        known = self._known.get(key)
        if known is None or any(at > position and known == symbol(name) for name, at in self.symbols.items()):
            self._known[key] = size

    def choose(self, position: int) -> Form:
        """The form of the integer at a position. Raises NoForm."""
        key, kind = self._column(position), int(self.kinds[position])
        if key.count(key[0]) == len(key):
            return form(key[0])
        if max(map(abs, key)) >= LARGEST:
            raise NoForm
        size = self._known.get(key)
        if size is None and kind != COUNT:
            alone = self._follows is not None and kind == SIZE and key not in self._follows
            size = self._form(self.table[:, position], kind, alone)
        if size is None:
            least = key[-1] if kind == SIZE else min(key)  # other samples may be of traces with one element
            name = next((name for name in self._names if name not in self.symbols), None)
            if name is None or least < LOWEST[kind] or (kind == OTHER and key not in self._sizes):
                raise NoForm
            return self._begin(name, position)
        return self._known.setdefault(key, size)

    def _begin(self, name: str, position: int) -> Form:
        self.symbols[name], self._columns[name] = position, self.table[:, position]
        return self._known.setdefault(self._column(position), symbol(name))

    def _column(self, position: int) -> tuple[int, ...]:
        return tuple(self.table[:, position].tolist())

    def _form(self, column: np.ndarray, kind: int, alone: bool) -> Form | None:
        """The simplest form of the symbols that is this column of numbers. One that stands `alone` is a product, if
        any."""
        columns = self._columns
        rows = zip(*(sizes.tolist() for sizes in columns.values()), strict=True)
        samples = [(dict(zip(columns, row, strict=True)), number) for row, number in zip(rows, column, strict=False)]
        samples.reverse()  # most candidates are made from the first sample
        for size in _candidates(column, columns, self._known, kind):
            if (self._rising and kind == SIZE and _falls(size)) or (alone and len(size.terms) != 1):
                continue
            if all(size.at(sizes) == number for sizes, number in samples):
                return size
        return None


def varying_of(forms: Sequence[Form], fixed: np.ndarray, symbols: Mapping[str, int]) -> Varying:
    """What varies where integers have these forms."""
    found: dict[Form, list[int]] = {}
    for position, size in enumerate(forms):
        if size.number is None:
            found.setdefault(size, []).append(position)
    constant = np.array([size.number is not None for size in forms], dtype=bool)
    return Varying(fixed, dict(symbols), {size: np.array(at) for size, at in found.items()}, constant)


def fit(samples: Sequence[np.ndarray], kinds: np.ndarray) -> Varying | None:
    """What varies between samples of the integers of a skeleton. None if these are no forms of at most `NAMES`."""
    table = np.stack(samples)
    found = [forms for order in _orders(table, kinds) if (forms := _fitted(Fitting(table, kinds), order)) is not None]
    return min(found, key=complexity, default=None)


def fewest(fitting: Callable[[], Fitting], positions: Sequence[int]) -> dict[str, int] | None:
    """The symbols of what is at these positions; None if there are too many.

    They are what was counted, and the first sizes of the trace that are no forms of those before them, or the smallest,
    or the largest ones, whichever are fewer and have the shorter forms: of a batch that comes flat, as n*m rows, it is
    n and m that vary, and of the gradient of every second row, n and not (n+1)/2. So are places where views begin, if
    they are no forms of sizes."""
    new = fitting()
    orders = [[at for at in order if at in positions] for order in _orders(new.table, new.kinds)]
    found = [each for order in orders if (each := _fitted(fitting(), order)) is not None]
    return None if not found else min(found, key=complexity).symbols


def _orders(table: np.ndarray, kinds: np.ndarray) -> list[list[int]]:
    """The positions of what varies, in orders in which symbols may be found."""
    differs = (table != table[0]).any(axis=0)
    counts, sizes, *others = (np.flatnonzero(differs & (kinds == kind)) for kind in ORDER)
    smallest = sizes[np.argsort(table[0][sizes], kind="stable")]
    orders = {order.tobytes(): order for order in (sizes, smallest, smallest[::-1])}.values()
    return [np.concatenate([counts, order, *others]).tolist() for order in orders]


def _fitted(fitting: Fitting, order: Sequence[int]) -> Varying | None:
    """The forms of what varies, in an order; None if one has none."""
    forms = [form(number) for number in fitting.table[-1].tolist()]
    try:
        for position in order:
            forms[position] = fitting.choose(position)
    except NoForm:
        return None
    return varying_of(forms, fitting.table[-1], fitting.symbols)


def complexity(made: Varying) -> tuple[int, int, int]:
    """Sums come before differences, which are no size at all for some sizes of a bucket."""
    differences = sum(len(size.symbols) > 1 and any(factor < 0 for _, factor in size.terms) for size in made.varying)
    return len(made.symbols), differences, sum(len(str(size)) for size in made.varying)


def _falls(size: Form) -> bool:
    """Whether it is less where one of its symbols is more."""
    far = dict.fromkeys(size.symbols, FAR)
    return any(size.at({**far, name: FAR - FAR // 4}) > size.at(far) for name in far)


def _candidates(
    column: np.ndarray, columns: Mapping[str, np.ndarray], known: Mapping[tuple[int, ...], Form], kind: int
) -> Iterator[Form]:
    samples = len(column)
    columns = {name: sizes for name, sizes in columns.items() if sizes[0]}  # nothing is no multiple
    if not columns:
        return
    for name, sizes in columns.items():
        if column[0] % sizes[0] == 0:
            yield symbol(name) * int(column[0] // sizes[0])
    for name, sizes in columns.items():
        yield symbol(name) + int(column[0] - sizes[0])
    for one, other in combinations_with_replacement(columns, 2):
        product = columns[one][0] * columns[other][0]
        if column[0] % product == 0:
            yield symbol(one) * symbol(other) * int(column[0] // product)
    for one, other in combinations(columns, 2):
        yield symbol(one) + symbol(other) + int(column[0] - columns[one][0] - columns[other][0])
        yield symbol(one) - symbol(other)
        yield symbol(other) - symbol(one)
    yield from _beside(column, known)
    # Two samples fit an affine form of any size by chance.
    if samples > (3 if kind == BEGIN else 2) or kind == OTHER:
        yield from _affine(column, columns)
    else:
        yield from (symbol(name) * -1 + int(column[0] + sizes[0]) for name, sizes in columns.items())
    if samples > 2:
        for one, other in permutations(columns, 2):
            yield symbol(one) - symbol(other) + int(column[0] - columns[one][0] + columns[other][0])
    if samples > (SURE if kind == BEGIN else 2):  # what is no form of these is a symbol
        yield from _polynomials(column, columns)
        yield from _quotients(column, columns)
        yield from _quotients_of(column, known)


def _beside(column: np.ndarray, known: Mapping[tuple[int, ...], Form]) -> Iterator[Form]:
    """What lies beside forms that are more than a multiple of a symbol: strides are multiples of sizes, and offsets
    sizes but for some."""
    several = [(values, size) for values, size in known.items() if len(size.symbols) > 1 or size.period > 1]
    parts = [*several, *[each for each in known.items() if each not in several and len(each[1].terms) > 1]]
    for values, size in parts:
        if values[0] and column[0] % values[0] == 0:
            yield size * int(column[0] // values[0])
    for values, size in several:
        yield size + int(column[0] - values[0])


def _affine(column: np.ndarray, columns: Mapping[str, np.ndarray]) -> Iterator[Form]:
    for name, sizes in columns.items():
        other = int(np.argmax(sizes != sizes[0]))
        step = int(sizes[other] - sizes[0])
        slope = int(column[other] - column[0])
        if step and slope % step == 0:
            slope //= step
            yield symbol(name) * slope + int(column[0] - slope * sizes[0])


def _polynomials(column: np.ndarray, columns: Mapping[str, np.ndarray]) -> Iterator[Form]:
    """Sums of products of at most two symbols, if there are samples enough to tell them."""
    names = list(columns)
    terms = [form(1), *map(symbol, names)]
    terms += [symbol(x) * symbol(y) for x, y in combinations_with_replacement(names, 2)]
    for count in (len(names) + 1, len(terms)):
        if len(column) <= count:
            return
        basis = [
            [term.at(dict(zip(names, row, strict=True))) for term in terms[:count]]
            for row in zip(*columns.values(), strict=True)
        ]
        solved, *_ = np.linalg.lstsq(np.array(basis, float), column.astype(float))
        total = form(0)
        for term, factor in zip(terms, np.round(solved).astype(int), strict=False):
            total = total + term * int(factor)
        yield total


def _quotients(column: np.ndarray, columns: Mapping[str, np.ndarray]) -> Iterator[Form]:
    """Quotients of one symbol, as windows and strides make them: these take elements away, and add few."""
    numbers = column[:, None]
    for name, sizes in columns.items():
        for by in (2, 3, 4) if len(column) == 3 else (2, 3, 4, 8, 16):  # three are too few for large ones
            added = np.arange(-by, by + 1)
            values = (sizes[:, None] + added) // by
            first = values[0]
            # Few fit, and numbers show that faster than forms.
            above = (numbers - values == column[0] - first).all(axis=0) & (column[0] - first <= by)
            below = (numbers + values == column[0] + first).all(axis=0)
            times = column[0] // np.where(first, first, 1)
            multiple = (numbers == values * times).all(axis=0) & (len(column) > 3)  # three fit some by chance
            for at in np.flatnonzero(above | below | multiple).tolist():
                whole = (symbol(name) + int(added[at])) // by
                if above[at]:
                    yield whole + int(column[0] - first[at])
                if below[at]:
                    yield whole * -1 + int(column[0] + first[at])
                if multiple[at]:
                    yield whole * int(times[at])


def _quotients_of(column: np.ndarray, known: Mapping[tuple[int, ...], Form]) -> Iterator[Form]:
    """Quotients of sizes that are quotients: windows along places of windows, of strides such as 2 and 3."""
    for values, size in known.items():
        if size.period == 1:
            continue
        for by in (2, 3, 4):
            for add in range(-by, by + 1):
                yield (size + add) // by + int(column[0] - (values[0] + add) // by)
