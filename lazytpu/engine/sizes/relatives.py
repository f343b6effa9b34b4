"""Size expressions transferred to a new trace from traces with similar ops, or with other sizes of 0 and 1.

A script runs a step in several variants: with or without a check, with one token or several, with an empty or a filled
cache. Each variant is a template of its own, but a size that varies at a source line in one varies there in the others.

A transferred expression never makes a result wrong. It must give the integers of the trace at hand, and a trace that
refutes it gets other expressions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

import numpy as np

from lazytpu.engine.sizes.derived import fit_guessed
from lazytpu.engine.sizes.fitting import NAMES, Varying
from lazytpu.engine.sizes.guesses import Guesses
from lazytpu.engine.sizes.skeletons import SIZE, Integers, form_of, trace_apart, with_parts
from lazytpu.ir.forms import Form, form, symbol
from lazytpu.ir.symbolic import MIN_SYMBOL
from lazytpu.ports import Inference
from lazytpu.trace.trie import Record

ALIKE = 0.6
"""The share of its records that a trace must have in common with a relative."""


@dataclass(frozen=True)
class Relative:
    """The records of a trace to be compared with relatives, and their integers."""

    records: Sequence[Record]

    @cached_property
    def places(self) -> list[tuple[Any, Any]]:
        """Return the op and source line of each record; None for the line in a backward pass, where lines are not
        stable."""
        return [(record.op, None if record.in_backward else record.line) for record in self.records]

    @cached_property
    def integers(self) -> Integers:
        trace_apart(self.records, into := Integers([], []))
        return into

    def at(self, record: int) -> range:
        """Return the positions of the integers of a record."""
        ends = self.integers.ends
        return range(ends[record - 1] if record else 0, ends[record])

    def kinds(self, record: int) -> list[int]:
        """Return the kinds of the integers of a record."""
        return [self.integers.kinds[at] for at in self.at(record)]

    def form(self, record: int) -> dict[str, Any]:
        """Return which arguments of a record are operands, run-time numbers and integers, by name."""
        return {name: form_of(value) for name, value in self.records[record].arguments.items()}

    def pairs(self, other: Relative) -> Iterator[tuple[int, int]]:
        """Yield the numbers of matching records: equal op, line and kinds of integers, and operands in
        the same places."""
        matcher = SequenceMatcher(None, self.places, other.places, autojunk=False)
        for mine, theirs, length in matcher.get_matching_blocks():
            for i in range(length):
                a, b = mine + i, theirs + i
                if self.kinds(a) == other.kinds(b) and self.form(a) == other.form(b):
                    yield a, b


def shared(places: frozenset[Any], others: frozenset[Any]) -> float:
    """Return the share of op places that two traces have in common."""
    return len(places & others) / max(1, len(places), len(others))


def smaller_ones(integers: np.ndarray, kinds: np.ndarray, others: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the samples of another template in which varying sizes may be 0 or 1.

    They agree with this trace wherever this trace has 0 or 1: such sizes do not vary in it.
    """
    fixed = (kinds == SIZE) & (integers < MIN_SYMBOL)
    return [sample for sample in others if (sample[fixed] == integers[fixed]).all()]


def grown(integers: np.ndarray, kinds: np.ndarray, other: np.ndarray) -> bool:
    """Return whether all sizes that are 0 or 1 in `other` and differ here have increased by exactly one, so will grow
    further."""
    less = (kinds == SIZE) & (other < MIN_SYMBOL) & (integers != other)
    return bool(less.any() and (integers[less] - other[less] == 1).all())


def transferred(
    varying: Varying, there: Relative, here: Relative, inference: Inference
) -> tuple[Varying, list[Record]] | None:
    """Return the expressions of `varying` for the trace `here`, and its records with slices where `there` has them.

    Return None if the expressions do not give the integers of the records in common, or if no symbol remains.
    """
    pairs = list(here.pairs(there))
    if len(pairs) < ALIKE * len(here.records):
        return None
    # Map the positions of integers and symbols in matching records.
    integers, kinds = np.array(here.integers.values), np.array(here.integers.kinds)
    forms = varying.forms
    places = {b: a for mine, theirs in pairs for a, b in zip(here.at(mine), there.at(theirs), strict=True)}
    symbols = _symbols(varying, places)
    if symbols is None:
        return None
    # Transfer the expressions that give the integers of this trace.
    sizes = {name: int(integers[at]) for name, at in symbols.items()}
    expressions = dict[int, Form]()
    for theirs, mine in places.items():
        if forms[theirs].at(sizes) == integers[mine]:
            expressions[mine] = forms[theirs]
        elif forms[theirs].number is None:
            return None
        else:
            expressions[mine] = form(int(integers[mine]))
    remaining, names = _without_few(expressions, symbols, integers, kinds)
    if not names:
        return None
    # Guess and derive the expressions of all other integers.
    counterparts = list(here.records)
    for mine, theirs in pairs:
        counterparts[mine] = there.records[theirs]
    records = with_parts(here.records, counterparts)
    guesses = Guesses(here.integers, names, remaining, parts=varying.parts)
    transferred_sizes = fit_guessed(guesses, records, inference)
    return None if transferred_sizes is None else (transferred_sizes, records)


def _symbols(varying: Varying, places: Mapping[int, int]) -> dict[str, int] | None:
    """Return the positions in this trace of the symbols; None if one has no counterpart."""
    positions = dict[str, int]()
    for name, at in varying.symbols.items():
        same = [at, *varying.varying[symbol(name)]]
        counterpart = next((places[position] for position in same if position in places), None)
        if counterpart is None:
            return None
        positions[name] = counterpart
    return positions


def _without_few(
    forms: Mapping[int, Form], symbols: Mapping[str, int], integers: np.ndarray, kinds: np.ndarray
) -> tuple[dict[int, Form], dict[str, int]]:
    """Return the expressions and symbols without symbols on which a size of 0 or 1 depends."""
    small = [at for at in forms if kinds[at] == SIZE and integers[at] < MIN_SYMBOL]
    gone = set[str]().union(*(forms[at].symbols for at in small))
    remaining = [name for name in symbols if name not in gone]
    names = {name: form(int(integers[symbols[name]])) for name in gone}
    names |= {old: symbol(new) for old, new in zip(remaining, NAMES, strict=False)}
    expressions = {at: size.where(names) for at, size in forms.items()}
    return expressions, {new: symbols[old] for old, new in zip(remaining, NAMES, strict=False)}
