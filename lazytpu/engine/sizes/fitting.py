"""Forms that are these numbers in all samples: what varies between traces of one skeleton, and how.

A size that is no form of the symbols found so far becomes a symbol. Two samples fit many forms, so the simplest is
taken; what it gets wrong, the next sample shows. A wrong form is never a wrong result: a program serves a trace only
if all forms give exactly its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, combinations_with_replacement, permutations, product, starmap
from operator import add, mul, sub
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


Column = tuple[int, ...]
"Integers at one position in some samples, or a form in these."
Base = tuple[Callable[[], Form], Column]
"What makes a form, and the form in the samples."


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
        follows: Collection[Column] | None = None,
        symbols: Mapping[str, int] = MappingProxyType({}),
        names: Sequence[str] = NAMES,
    ) -> None:
        self.table, self.kinds, self.symbols = table, kinds, dict[str, int]()
        self._rising, self._follows, self._names = rising, follows, names
        self._sizes = set(map(tuple, table.T[kinds == SIZE].tolist()))
        self._columns = dict[str, Column]()
        self._known = dict[Column, Form]()
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
            size = self._form(key, kind, alone)
        if size is None:
            least = key[-1] if kind == SIZE else min(key)  # other samples may be of traces with one element
            name = next((name for name in self._names if name not in self.symbols), None)
            if name is None or least < LOWEST[kind] or (kind == OTHER and key not in self._sizes):
                raise NoForm
            return self._begin(name, position)
        return self._known.setdefault(key, size)

    def _begin(self, name: str, position: int) -> Form:
        self.symbols[name], self._columns[name] = position, self._column(position)
        return self._known.setdefault(self._columns[name], symbol(name))

    def _column(self, position: int) -> Column:
        return tuple(self.table[:, position].tolist())

    def _form(self, column: Column, kind: int, alone: bool) -> Form | None:
        """The simplest form of the symbols that is this column of numbers. One that stands `alone` is a product, if
        any."""
        for size in _candidates(column, self._columns, self._known, kind):
            if not ((self._rising and kind == SIZE and _falls(size)) or (alone and len(size.terms) != 1)):
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
    column: Column, columns: Mapping[str, Column], known: Mapping[Column, Form], kind: int
) -> Iterator[Form]:
    """The forms that are this column in all samples, the simplest first: a multiple of a base, the base and a number,
    or both. Bases are symbols, products, sums and differences of two, known forms, and quotients."""
    symbols = [(symbol(name), sizes) for name, sizes in columns.items() if sizes[0]]  # nothing is no multiple
    names = [(partial(_itself, size), sizes) for size, sizes in symbols]
    pairs = list(combinations(symbols, 2))
    differences = [_both(sub, *pair) for pair in permutations(symbols, 2)]
    parts, several = _compound(known)
    # Two samples fit an affine form of any size by chance, and few one of a place where a view begins.
    affine = len(column) > (3 if kind == BEGIN else 2) or kind == OTHER

    def like(bases: Iterable[Base], allowed: Callable[[int, int], bool]) -> Iterator[Form]:
        for make, values in bases:
            fit = _fit(column, values)
            if fit is not None and allowed(*fit):
                yield make() * fit[0] + fit[1]

    if not symbols:
        return
    yield from like(names, _multiple)
    yield from like(names, _shifted)
    yield from like(starmap(partial(_both, mul), combinations_with_replacement(symbols, 2)), _multiple)
    yield from like(starmap(partial(_both, add), pairs), _shifted)
    yield from like(differences, _same)
    yield from like(parts, _multiple)
    yield from like(several, _shifted)
    yield from like(names, _any if affine else _mirrored)
    if len(column) > 2:
        yield from like(differences, _shifted)
    if len(column) > (SURE if kind == BEGIN else 2):  # what is no form of these is a symbol
        # Windows and strides take elements away, and add few. Three samples are too few for large quotients.
        for each, by in product(symbols, (2, 3, 4) if len(column) == 3 else (2, 3, 4, 8, 16)):
            yield from like(_quotients([each], by), partial(_beside, by=by, samples=len(column)))
        windows = [(size, values) for values, size in known.items() if size.period > 1]
        for each, by in product(windows, (2, 3, 4)):  # windows along places of windows
            yield from like(_quotients([each], by), _shifted)


def _fit(column: Column, base: Column) -> tuple[int, int] | None:
    """The factor and the number by which a column is `base * factor + number`; None where there are none."""
    other = next((i for i, size in enumerate(base) if size != base[0]), 0)
    factor, rest = divmod(column[other] - column[0], base[other] - base[0]) if other else (0, 1)
    more = column[0] - factor * base[0]
    differs = rest or any(n != factor * size + more for n, size in zip(column, base, strict=True))
    return None if differs else (factor, more)


def _same(factor: int, more: int) -> bool:
    return factor == 1 and more == 0


def _multiple(factor: int, more: int) -> bool:
    return more == 0


def _shifted(factor: int, more: int) -> bool:
    return factor == 1


def _mirrored(factor: int, more: int) -> bool:
    return factor == -1


def _any(factor: int, more: int) -> bool:
    return True


def _beside(factor: int, more: int, by: int, samples: int) -> bool:
    """Whether something lies beside a quotient. Three samples fit a multiple by chance."""
    return (factor == 1 and more <= by) or factor == -1 or (more == 0 and samples > 3)


def _itself(size: Form) -> Form:
    return size


def _both(operation: Callable[[Any, Any], Any], one: tuple[Form, Column], other: tuple[Form, Column]) -> Base:
    return partial(operation, one[0], other[0]), tuple(map(operation, one[1], other[1]))


def _quotients(of: Iterable[tuple[Form, Column]], by: int) -> Iterator[Base]:
    for size, values in of:
        for more in range(-by, by + 1):
            yield partial(_quotient, size, more, by), tuple([(n + more) // by for n in values])


def _quotient(size: Form, more: int, by: int) -> Form:
    return (size + more) // by


def _compound(known: Mapping[Column, Form]) -> tuple[list[Base], list[Base]]:
    """Forms that are more than a multiple of a symbol, those of several symbols first, and these alone: strides are
    multiples of sizes, and offsets sizes but for some."""
    several = [(values, size) for values, size in known.items() if len(size.symbols) > 1 or size.period > 1]
    others = [each for each in known.items() if each not in several and len(each[1].terms) > 1]
    bases = [[(partial(_itself, size), values) for values, size in each if values[0]] for each in (several, others)]
    return [*bases[0], *bases[1]], [(partial(_itself, size), values) for values, size in several]
