"""What traces with other ops, or other sizes of 0 and 1, show of one that is met for the first time.

A script takes a step in several ways: with a check in front of it or without, with one token or with a few, with the
first token of a cache or with further ones. Each is a template of its own, but what varies at a line of the script in
one of them varies there in the others. What is guessed of these is never a wrong result: forms give the numbers of the
trace that is there, and a trace of which they do not give all has other forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

import numpy as np

from lazytpu.engine.sizes.fitting import NAMES, Varying
from lazytpu.engine.sizes.guesses import Guesses
from lazytpu.engine.sizes.skeletons import LEAST, SIZE, Integers, form_of, trace_apart, with_parts
from lazytpu.ir.forms import Form, form, symbol
from lazytpu.ports import Inference
from lazytpu.trace.trie import Record

ALIKE = 0.6
"The part of the records of a trace that another one must have."


@dataclass(frozen=True)
class Relative:
    """The records of a trace that has relatives, with their integers."""

    records: Sequence[Record]

    @cached_property
    def places(self) -> list[tuple[Any, Any]]:
        """The op and the line of each record; those of a backward pass have no lines that are always the same."""
        return [(record.op, None if record.in_backward else record.line) for record in self.records]

    @cached_property
    def integers(self) -> Integers:
        found = Integers([], [])
        trace_apart(self.records, found, self._ends)
        return found

    @cached_property
    def _ends(self) -> list[int]:
        return []

    def span(self, record: int) -> slice:
        """The positions of the integers of a record."""
        assert self.integers
        return slice(self._ends[record - 1] if record else 0, self._ends[record])

    def form(self, record: int) -> dict[str, Any]:
        """Where there are operands, numbers and integers among the arguments of a record."""
        return {name: form_of(value) for name, value in self.records[record].arguments.items()}

    def pairs(self, other: Relative) -> Iterator[tuple[int, int]]:
        """The records that are the same in another trace, by their numbers: they have operands in the same places."""
        matcher = SequenceMatcher(None, self.places, other.places, autojunk=False)
        kinds, others = self.integers.kinds, other.integers.kinds
        for mine, theirs, length in matcher.get_matching_blocks():
            for i in range(length):
                one, two = mine + i, theirs + i
                if kinds[self.span(one)] == others[other.span(two)] and self.form(one) == other.form(two):
                    yield one, two


def shared(places: frozenset[Any], others: frozenset[Any]) -> float:
    """The part of the places of two traces that are in both."""
    return len(places & others) / max(1, len(places), len(others))


def smaller_ones(integers: np.ndarray, kinds: np.ndarray, others: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Those of some samples of the same ops that have 0 or 1 of what this trace has more of: what it has 0 or 1 of does
    not vary in it."""
    fixed = (kinds == SIZE) & (integers < LEAST)
    return [other for other in others if (other[fixed] == integers[fixed]).all()]


def grown(integers: np.ndarray, kinds: np.ndarray, other: np.ndarray) -> bool:
    """Whether a trace has 2 elements of what another one had 1 of: there will be more."""
    less = (kinds == SIZE) & (other < LEAST) & (integers != other)
    return bool(less.any() and (integers[less] - other[less] == 1).all())


def transferred(
    varying: Varying, there: Relative, here: Relative, inference: Inference
) -> tuple[Varying, list[Record]] | None:
    """The forms of another trace for one that is `here`, and its records, where a part is of what it has all of. None
    if they are not the integers of the records that both have, or no symbol is left."""
    pairs = list(here.pairs(there))
    if len(pairs) < ALIKE * len(here.records):
        return None
    integers, kinds = np.array(here.integers.values), np.array(here.integers.kinds)
    own = {at: size for size, positions in varying.varying.items() for at in positions.tolist()}
    places = {b: a for mine, theirs in pairs for a, b in zip(_range(here, mine), _range(there, theirs), strict=True)}
    symbols = _symbols(varying, places)
    if symbols is None:
        return None
    sizes = {name: int(integers[at]) for name, at in symbols.items()}
    known = dict[int, Form]()
    for theirs, mine in places.items():
        size = own.get(theirs, form(int(varying.fixed[theirs])))
        if size.at(sizes) == integers[mine]:
            known[mine] = size
        elif theirs in own:
            return None
        else:
            known[mine] = form(int(integers[mine]))
    told, names = _without_few(known, symbols, integers, kinds)
    if not names:
        return None
    others = list(here.records)
    for mine, theirs in pairs:
        others[mine] = there.records[theirs]
    records = with_parts(here.records, others)
    fixed = {int(integers[at]) for at, size in told.items() if size.number is not None and kinds[at] == SIZE}
    made = Guesses(integers, kinds, names, told, fixed).varying(records, inference)
    return None if made is None else (made, records)


def _range(trace: Relative, record: int) -> range:
    span = trace.span(record)
    return range(span.start, span.stop)


def _symbols(varying: Varying, places: Mapping[int, int]) -> dict[str, int] | None:
    """The positions here of the symbols; None if one is none here."""
    found = dict[str, int]()
    for name, at in varying.symbols.items():
        same = [at, *varying.varying[symbol(name)].tolist()]
        here = next((places[each] for each in same if each in places), None)
        if here is None:
            return None
        found[name] = here
    return found


def _without_few(
    forms: Mapping[int, Form], symbols: Mapping[str, int], integers: np.ndarray, kinds: np.ndarray
) -> tuple[dict[int, Form], dict[str, int]]:
    """The forms, where symbols of which there are 0 or 1 are none, and the symbols that are left."""
    few = [at for at in forms if kinds[at] == SIZE and integers[at] < LEAST]
    gone = set[str]().union(*(forms[at].symbols for at in few))
    left = [name for name in symbols if name not in gone]
    names = {name: form(int(integers[symbols[name]])) for name in gone}
    names |= {old: symbol(new) for old, new in zip(left, NAMES, strict=False)}
    found = {at: size.where(names) for at, size in forms.items()}
    return found, {new: symbols[old] for old, new in zip(left, NAMES, strict=False)}
