"""Size expressions that reproduce all samples: which integers of a structure vary between its traces, and how.

A size that is no expression of the symbols so far becomes a symbol. Many expressions fit two samples, so the simplest
is taken, and the next sample refutes a wrong one. A wrong expression never makes a result wrong: a program serves a
trace only if all expressions give exactly its integers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, combinations_with_replacement, permutations, product
from operator import add, mul, sub
from types import MappingProxyType
from typing import Any

import numpy as np

from lazytpu.engine.sizes.results import LARGEST
from lazytpu.engine.sizes.skeletons import BEGIN, COUNT, OTHER, SIZE
from lazytpu.ir.forms import Form, form, symbol
from lazytpu.ir.symbolic import MIN_SYMBOL, Guard

NAMES = (*"nmkjih", *[f"n{number}" for number in range(1, 59)])
"""The symbols of a trace, in the order in which they are introduced. A trace that needs more gets no program for many
sizes. A mixture of experts has one for each expert."""
SURE = 5
"""The number of samples from which the start of a view may be any expression."""
PARTS = 4
"""The number of parts of a tensor from which their sizes are independent, if they are counts or sizes of inputs."""
BEGINS = 2
"""The same for starts of parts: a third part begins behind the second one."""
FAR = 3 << 16
ORDER = (COUNT, SIZE, BEGIN, OTHER)
LOWEST = {COUNT: MIN_SYMBOL, SIZE: MIN_SYMBOL, BEGIN: 0, OTHER: MIN_SYMBOL}
"""The least value of a symbol, by the kind of its integer."""


Column = tuple[int, ...]
"""The values of one integer in each sample, or of an expression in each sample."""
Base = tuple[Form, Column]
"""A size expression and its values in the samples."""


@dataclass(frozen=True)
class Varying:
    """The integers of the traces of one structure as size expressions: `forms`, by position. A symbol's value is the
    integer at its position in `symbols`. `derived` are the numbers of the records whose result layouts follow from the
    layouts of operands, each with the guards under which they do. `parts` says whether the sizes are those of parts
    (`has_parts`); `joined` are the numbers of the records that join parts to a tensor of a constant size."""

    forms: Sequence[Form]
    symbols: dict[str, int]
    derived: Mapping[int, Sequence[Guard]] = field(default_factory=dict[int, Sequence[Guard]])
    parts: bool = False
    joined: frozenset[int] = frozenset()

    @cached_property
    def varying(self) -> dict[Form, list[int]]:
        """The positions of each expression that is no constant."""
        positions: dict[Form, list[int]] = {}
        for position, size in enumerate(self.forms):
            if size.number is None:
                positions.setdefault(size, []).append(position)
        return positions

    def solved(self, integers: np.ndarray) -> dict[str, int] | None:
        """Return the values of the symbols at which the expressions give exactly these integers, or None."""
        sizes = {name: int(integers[position]) for name, position in self.symbols.items()}
        return sizes if self.at(sizes) == integers.tolist() else None

    def contradicted(self, integers: np.ndarray) -> tuple[int, dict[str, int]]:
        """Return the first position at which the expressions do not give these integers, and the symbols' values."""
        sizes = {name: int(integers[position]) for name, position in self.symbols.items()}
        differs = [expected != number for expected, number in zip(self.at(sizes), integers.tolist(), strict=True)]
        return differs.index(True), sizes

    def at(self, sizes: Mapping[str, int]) -> list[int]:
        """Return the integers at these values of the symbols."""
        values = {size: size.at(sizes) for size in self.varying}
        return [values[size] if (number := size.number) is None else number for size in self.forms]

    def __str__(self) -> str:
        return "; ".join(f"{size}: {' '.join(map(str, positions))}" for size, positions in self.varying.items())


class NoForm(Exception):
    """Raised for an integer that varies, is no known expression of the symbols, and cannot become a symbol."""


class Fitting:
    """Chooses size expressions for integers, one after the other, that agree with all samples.

    `table` has the samples, i64[samples, integers]. A size that is no expression of the symbols so far becomes one;
    this may be an argument of an op that precedes the tensor of that size.

    No size decreases when a symbol increases, so an array at the bounds has room for all sizes. `follows` are the
    columns known to depend on others. Any other size is then a symbol or a product: that it was another size plus a
    constant is a coincidence of these samples.
    """

    sources: Mapping[str, tuple[int, int]] = MappingProxyType({})
    """The slot and the dimension of names in expressions that are no symbols."""

    def __init__(
        self,
        table: np.ndarray,
        kinds: np.ndarray,
        follows: Collection[Column] | None = None,
        symbols: Mapping[str, int] = MappingProxyType({}),
        names: Sequence[str] = NAMES,
        parts: bool = False,
    ) -> None:
        self.table, self.kinds, self.symbols = table, kinds, dict[str, int]()
        self._follows, self._names, self.parts = follows, names, parts
        self._sizes = set(map(tuple, table.T[kinds == SIZE].tolist()))
        self._columns = dict[str, Column]()
        self._known = dict[Column, Form]()
        for name, at in symbols.items():
            self._begin(name, at)

    def sizes(self, row: int) -> dict[str, int]:
        """Return the values of the symbols in one sample."""
        return {name: int(self.table[row, at]) for name, at in self.symbols.items()}

    def learn(self, position: int, size: Form) -> None:
        """Record `size` as the expression of the integer at a position, and of later integers with the same column."""
        key = self._column(position)
        previous = self._known.get(key)
        if previous is None or any(at > position and previous == symbol(name) for name, at in self.symbols.items()):
            self._known[key] = size

    def choose(self, position: int) -> Form:
        """Return the expression of the integer at a position, introducing a symbol if needed. Raise NoForm if there is
        none."""
        key, kind = self._column(position), int(self.kinds[position])
        behind = self._behind(key) if self.parts and kind == BEGIN and any(key) else None
        if behind is not None:
            return self._known.setdefault(key, behind)
        if key.count(key[0]) == len(key):
            return form(key[0])
        if max(map(abs, key)) >= LARGEST:
            raise NoForm
        size = self._known.get(key)
        if size is None and kind != COUNT:
            independent = self._follows is not None and kind == SIZE and key not in self._follows
            alone = independent or (self.parts and (kind == SIZE or key in self._sizes))
            size = None if self.parts and kind == BEGIN else self._form(key, kind, alone)
        if size is None:
            least = key[-1] if kind == SIZE else min(key)  # other samples may have one element
            name = next((name for name in self._names if name not in self.symbols), None)
            if name is None or least < LOWEST[kind] or (kind == OTHER and key not in self._sizes):
                raise NoForm
            return self._begin(name, position)
        return self._known.setdefault(key, size)

    def is_constant(self, position: int) -> bool:
        """Return whether the integer at a position is the same in all samples."""
        column = self.table[:, position]
        return bool((column == column[0]).all())

    def _begin(self, name: str, position: int) -> Form:
        """Introduce a symbol whose value is the integer at a position."""
        self.symbols[name], self._columns[name] = position, self._column(position)
        return self._known.setdefault(self._columns[name], symbol(name))

    def _column(self, position: int) -> Column:
        """Return the values of the integer at a position in all samples."""
        return tuple(self.table[:, position].tolist())

    def _form(self, column: Column, kind: int, alone: bool) -> Form | None:
        """Return the simplest expression of the symbols with these values, or None. With `alone`, only a product is
        allowed."""
        is_size = kind == SIZE or (kind == OTHER and column in self._sizes)  # such as the end of an arange
        for size in _candidates(column, self._columns, self._known, kind):
            if not ((is_size and _falls(size)) or (alone and len(size.terms) != 1)):
                return size
        return None

    def _behind(self, column: Column) -> Form | None:
        """Return the expression of the place behind another part with these values, or None."""
        for values, start in reversed(self._known.items()):
            for name, sizes in self._columns.items():
                if tuple(map(add, values, sizes)) == column:
                    return start + symbol(name)
        return None


def has_parts(table: np.ndarray, kinds: np.ndarray, inputs: Sequence[int]) -> bool:
    """Return whether a trace works on parts of a tensor whose sizes depend on values, such as the tokens of each
    expert: several counts, starts of views, or sizes of its inputs differ between the samples, each by its own amount.

    `inputs` are the positions of sizes of inputs. Few samples would show some of these sizes as sums or differences of
    others.
    """
    counted = kinds == COUNT
    counted[inputs] = True
    return _changes(table, counted) >= PARTS or _changes(table, kinds == BEGIN) >= BEGINS


def _changes(table: np.ndarray, where: np.ndarray) -> int:
    """Return in how many ways the integers at some positions change."""
    changes = np.unique((table - table[0]).T[where], axis=0)
    return int(np.count_nonzero(changes.any(axis=1)))


def simplest(fitting: Callable[[], Fitting], positions: Collection[int]) -> Varying | None:
    """Return the simplest size expressions of the integers at these positions; None if they need more symbols than
    available.

    Counts made on the device are symbols. Further symbols are sizes that are no expressions of earlier symbols,
    introduced in one of three orders: the trace's, smallest first, or largest first. The order with the fewest symbols
    and the shortest expressions is taken. For a batch that is flattened to n*m rows these are n and m; for the gradient
    of every second row it is n, not (n+1)/2. The start of a view is a symbol if it is no expression of sizes.
    """
    new = fitting()
    orders = [[at for at in order if at in positions] for order in _orders(new.table, new.kinds)]
    candidates = [candidate for order in orders if (candidate := _fitted(fitting(), order)) is not None]
    return min(candidates, key=complexity, default=None)


def _orders(table: np.ndarray, kinds: np.ndarray) -> list[list[int]]:
    """Return orders in which to look for symbols among the positions that vary."""
    differs = (table != table[0]).any(axis=0)
    counts, sizes, *other_kinds = (np.flatnonzero(differs & (kinds == kind)) for kind in ORDER)
    smallest = sizes[np.argsort(table[0][sizes], kind="stable")]
    orders = {order.tobytes(): order for order in (sizes, smallest, smallest[::-1])}.values()
    return [np.concatenate([counts, order, *other_kinds]).tolist() for order in orders]


def _fitted(fitting: Fitting, order: Sequence[int]) -> Varying | None:
    """Return the expressions found when symbols are introduced in this order; None if an integer has no expression."""
    forms = [form(number) for number in fitting.table[-1].tolist()]
    try:
        for position in order:
            forms[position] = fitting.choose(position)
    except NoForm:
        return None
    return Varying(forms, fitting.symbols)


def complexity(made: Varying) -> tuple[int, int, int]:
    """Return a sort key: number of symbols, then number of differences, then length of the text.

    Differences come after sums, since they are no valid size for some sizes of a bucket.
    """
    differences = sum(len(size.symbols) > 1 and any(factor < 0 for _, factor in size.terms) for size in made.varying)
    return len(made.symbols), differences, sum(len(str(size)) for size in made.varying)


def _falls(size: Form) -> bool:
    """Return whether an expression decreases when one of its symbols increases, tested at large sizes."""
    far = dict.fromkeys(size.symbols, FAR)
    return any(size.at({**far, name: FAR - FAR // 4}) > size.at(far) for name in far)


def _candidates(
    column: Column, columns: Mapping[str, Column], known: Mapping[Column, Form], kind: int
) -> Iterator[Form]:
    """Yield the expressions with these values in all samples, the simplest first.

    A candidate is a multiple of a base, a base plus a constant, or both. Bases are symbols, products, sums and
    differences of two symbols, expressions known so far, and quotients.
    """
    symbols = [(symbol(name), sizes) for name, sizes in columns.items() if sizes[0]]  # a multiple of 0 says nothing
    several = [(size, values) for values, size in known.items() if len(size.symbols) > 1 or size.period > 1]
    sums = [(size, values) for values, size in known.items() if len(size.terms) > 1 and (size, values) not in several]
    # Two samples fit an affine expression of any size by chance; view starts need more samples.
    affine = len(column) > (3 if kind == BEGIN else 2) or kind == OTHER

    def like(bases: Iterable[Base], factor: int | None = None, more: int | None = None) -> Iterator[Form]:
        for base, values in bases:
            fit = _fit(column, values)
            if fit is not None and factor in (None, fit[0]) and more in (None, fit[1]):
                yield base * fit[0] + fit[1]

    if not symbols:
        return
    yield from like(symbols, more=0)
    yield from like(symbols, factor=1)
    yield from like((_both(mul, *pair) for pair in combinations_with_replacement(symbols, 2)), more=0)
    yield from like((_both(add, *pair) for pair in combinations(symbols, 2)), factor=1)
    yield from like((_both(sub, *pair) for pair in permutations(symbols, 2)), factor=1, more=0)
    compound = [(size, values) for size, values in (*several, *sums) if values[0]]
    yield from like(compound, more=0)  # strides are multiples of sizes, and offsets sizes minus constants
    yield from like(several, factor=1)
    yield from like(symbols, factor=None if affine else -1)
    if len(column) > 2:
        yield from like((_both(sub, *pair) for pair in permutations(symbols, 2)), factor=1)
    if len(column) > (SURE if kind == BEGIN else 2):  # with fewer samples it becomes a symbol
        # Windows and strides remove elements and add few. Three samples do not confirm large divisors.
        for base, by in product(symbols, (2, 3, 4) if len(column) == 3 else (2, 3, 4, 8, 16)):
            for size, factor, more in _quotients(column, base, by):
                if (factor == 1 and more <= by) or factor == -1 or (more == 0 and len(column) > 3):
                    yield size * factor + more
        windows = [(size, values) for values, size in known.items() if size.period > 1]
        for base, by in product(windows, (2, 3, 4)):  # windows over the outputs of windows
            yield from (size + more for size, factor, more in _quotients(column, base, by) if factor == 1)


def _fit(column: Column, base: Column) -> tuple[int, int] | None:
    """Return (factor, constant) with `column == base * factor + constant` in every sample, or None."""
    differing = next((i for i, size in enumerate(base) if size != base[0]), 0)
    factor, remainder = divmod(column[differing] - column[0], base[differing] - base[0]) if differing else (0, 1)
    constant = column[0] - factor * base[0]
    differs = remainder or any(n != factor * size + constant for n, size in zip(column, base, strict=True))
    return None if differs else (factor, constant)


def _both(operation: Callable[[Any, Any], Any], one: Base, other: Base) -> Base:
    return operation(one[0], other[0]), tuple(map(operation, one[1], other[1]))


def _quotients(column: Column, base: Base, by: int) -> Iterator[tuple[Form, int, int]]:
    """Yield (`(size + more) // by`, factor, constant) for small `more` if this gives the column."""
    for more in range(-by, by + 1):
        fit = _fit(column, tuple([(n + more) // by for n in base[1]]))
        if fit is not None:
            yield (base[0] + more) // by, *fit
