"""Forms made of other forms that the same program has: layers take what layers before them give.

Which quotient the fourth stride of a network makes is not guessed from its numbers alone: it is the quotient of a size
that is found already. So are the number of elements of an image, a product of two sizes, and what strides leave over of
a size, which is that and a multiple of the number of places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd

import numpy as np

from lazytpu.ir.forms import Form

CERTAIN = 7
"Samples for a quotient or a product, which a few would fit by chance."
OF_SUMS = 9
"The same for a sum, of which there are many."
BY = (2, 3, 4)
"Strides of windows."
Known = Mapping[tuple[int, ...], Form]
"Forms by their numbers in all samples."


def compound(columns: Sequence[Sequence[int]], fits: Sequence[Sequence[Form]]) -> list[list[Form]]:
    """The forms of columns of numbers, where those that have none so far are found from those of the others; all that
    fit, the shortest first."""
    found = [list(each) for each in fits]
    known = {tuple(column): each[0] for column, each in zip(columns, found, strict=True) if _varies(each)}
    while True:
        news = {i: _made(columns[i], known) for i, each in enumerate(found) if not each}
        news = {i: forms for i, forms in news.items() if forms}
        if not news:
            return found
        for i, forms in news.items():
            found[i], known[tuple(columns[i])] = forms, forms[0]


def _varies(forms: Sequence[Form]) -> bool:
    return bool(forms) and forms[0].number is None


def _made(numbers: Sequence[int], known: Known) -> list[Form]:
    if len(numbers) < CERTAIN or not known:
        return []
    column = np.array(numbers)
    forms = {*_quotients(column, known), *_products(column, known)}
    if not forms and len(numbers) >= OF_SUMS:
        forms = set(_sums(column, known))
    return sorted(forms, key=lambda size: (len(size.terms), len(str(size)), str(size)))


def _quotients(column: np.ndarray, known: Known) -> Iterator[Form]:
    """Quotients of quotients."""
    for values, size in known.items():
        for by in BY if size.period > 1 else ():
            for rest in range(by):
                whole = (np.array(values) + rest) // by
                if (column - whole == column[0] - whole[0]).all():
                    yield (size + rest) // by + int(column[0] - whole[0])


def _products(column: np.ndarray, known: Known) -> Iterator[Form]:
    """Some times two sizes."""
    rows, forms = np.array(list(known)), list(known.values())
    for i, first in enumerate(forms):
        products = rows[i] * rows[i:]
        times = column[0] // np.where(products[:, 0], products[:, 0], 1)
        for j in np.flatnonzero((products * times[:, None] == column).all(1)).tolist():
            yield first * forms[i + j] * int(times[j])


def _sums(column: np.ndarray, known: Known) -> Iterator[Form]:
    """Sums of two sizes, each some times, and a number."""
    bases: dict[tuple[int, ...], tuple[np.ndarray, Form]] = {}
    "How they rise, by that of the smallest which rises alike, and the form."
    for values, size in known.items():
        rises = np.array(values) - values[0]
        key = tuple((rises // (gcd(*rises.tolist()) * (1 if rises.sum() >= 0 else -1))).tolist())
        if key not in bases or np.abs(rises).sum() < np.abs(bases[key][0]).sum():
            bases[key] = rises, size
    rise, forms = column - column[0], [size for _, size in bases.values()]
    rows: np.ndarray = np.array([rises for rises, _ in bases.values()]).reshape(-1, len(column))
    exact: np.ndarray = rows.astype(float)
    starts = {size: values[0] for values, size in known.items()}
    for i, first in enumerate(forms):
        one, others = rows[i], rows[i + 1 :]
        own, both, square = exact[i] @ exact[i], exact[i + 1 :] @ exact[i], (exact[i + 1 :] ** 2).sum(1)
        of_one, of_others = exact[i] @ rise, exact[i + 1 :] @ rise
        area: np.ndarray = own * square - both * both
        area[area == 0] = 1  # of two that rise alike but for rounding
        solved: np.ndarray = np.stack([of_one * square - of_others * both, of_others * own - of_one * both]) / area
        firsts, seconds = solved.round().astype(np.int64)
        for j in np.flatnonzero((firsts[:, None] * one + seconds[:, None] * others == rise).all(1)).tolist():
            some, more, second = int(firsts[j]), int(seconds[j]), forms[i + 1 + j]
            yield first * some + second * more + int(column[0] - starts[first] * some - starts[second] * more)
