"""Size expressions for the integers of a trace: fitted or guessed for op arguments, derived for results.

An expression of an argument may be wrong until another trace refutes it. It never makes a result wrong: a program
serves a trace only if all expressions give exactly its integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from lazytpu.engine.sizes.fitting import LOWEST, NAMES, Fitting, NoForm, Varying, has_parts, simplest
from lazytpu.engine.sizes.guesses import Guesses
from lazytpu.engine.sizes.results import Results, integers_of
from lazytpu.engine.sizes.skeletons import OTHER, Integers, Together, trace_apart
from lazytpu.ir.forms import Form, form, symbol
from lazytpu.ir.symbolic import Guard
from lazytpu.ports import Inference
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout

MANY = (*NAMES, "g", "f", "e", "d", "c", "b")
"""Names for the symbols of a first pass, in which some symbols may turn out to be expressions of others."""


def fit_derived(
    samples: Sequence[np.ndarray],
    kinds: np.ndarray,
    records: Sequence[Record],
    inference: Inference,
    apart: bool = False,
    parts: bool = True,
) -> Varying | None:
    """Return the size expressions that agree with all samples of the integers of these records.

    Return None if more symbols than `NAMES` would be needed. With `apart`, an argument's size is never another size
    plus a constant; it is a product, or a symbol of its own. The same holds for the parts of a tensor,
    which are not looked for without `parts`.
    """
    table = np.stack(samples)
    trace_apart(records, into := Integers([], []))
    follows = {tuple(column) for column in table.T[into.made].tolist()} if apart else None
    parts = parts and has_parts(table, kinds, [position for position, _, _ in into.inputs])

    def fitting(symbols: Mapping[str, int] = MappingProxyType({}), names: Sequence[str] = NAMES) -> Fitting:
        return Fitting(table, kinds, follows, symbols, names, parts)

    # Arguments, in the order of the trace, show the sizes that are no expressions of earlier ones. If a number is no
    # expression of earlier sizes, such as the length of zeros, consider the sizes of the whole trace.
    try:
        first = Derived(records, fitting(names=MANY), inference).varying
        places = [*first.symbols.values()]
    except NoForm:
        first, is_argument = None, kinds != OTHER
        is_argument[into.made] = False
        places = np.flatnonzero(is_argument).tolist()
    shown = simplest(fitting, places)
    symbols = None if shown is None else shown.symbols
    if first is not None and symbols is not None and sorted(symbols.values()) == sorted(places):  # all independent
        return first
    while symbols is not None:
        try:
            varying = Derived(records, fitting(symbols), inference).varying
        except NoForm:
            return None
        follow = _dependent(varying)
        if not follow:
            return varying
        symbols = {name: at for name, at in symbols.items() if name not in follow}
    return None


def fit_guessed(guesses: Guesses, records: Sequence[Record], inference: Inference) -> Varying | None:
    """Return the size expressions of one trace of these records, or None if a symbol is an expression of others."""
    varying = Derived(records, guesses, inference).varying
    return None if _dependent(varying) else varying


def _dependent(varying: Varying) -> list[str]:
    """Return the symbols that are expressions of others."""
    return [name for name, at in varying.symbols.items() if varying.forms[at] != symbol(name)]


class Derived(Together):
    """The size expression of each integer of a trace, in the order of `trace_apart`: derived for results and for
    operands that are full tensors, else from `known`. Raises NoForm if an integer has none."""

    def __init__(self, records: Sequence[Record], known: Fitting, inference: Inference) -> None:
        super().__init__(self._sizes())
        self._known, self._inferred, self._forms = known, Results(inference), list[Form]()
        self._guards, self._joined, self._number = dict[int, Sequence[Guard]](), set[int](), 0
        self._begin()
        for self._number, record in enumerate(records):
            self.record(record)

    @property
    def varying(self) -> Varying:
        return Varying(self._forms, self._known.symbols, self._guards, self._known.parts, frozenset(self._joined))

    def _begin(self) -> None:
        """Declare the symbols that `known` has introduced."""
        fitting, begun = self._known, self._inferred.derivation.symbols
        for name, at in fitting.symbols.items():
            if name not in begun:
                self._inferred.begin(name, LOWEST[int(fitting.kinds[at])], fitting.sizes(-1)[name])

    def _sizes(self) -> Iterator[Any]:
        """Yield the integers of arguments as symbolic sizes."""
        sources = self._known.sources
        while True:
            size = self._known.choose(len(self._forms))
            self._begin()
            if size.symbols & sources.keys():
                size = size.where({name: self._source(name) for name in size.symbols})
                self._known.learn(len(self._forms), size)
            self._forms.append(size)
            yield self._inferred.derivation.size(size)

    def _source(self, name: str) -> Form:
        """Return the expression that a name of `sources` stands for, or the symbol itself."""
        if name not in self._known.sources:
            return symbol(name)
        slot, dim = self._known.sources[name]
        return self._inferred.derivation.form_of(self.after[slot].shape[dim])

    def operand(self, operand: Operand) -> Operand:
        if operand.view is not None:
            return super().operand(operand)
        shape = self.after[operand.slot].shape
        self._forms += [*map(self._inferred.derivation.form_of, shape), *[form(0)] * len(shape)]
        return operand

    def results(self, record: Record) -> tuple[Layout | None, ...]:
        """Return the layouts of a record's results: derived if they give the observed integers, else from `known`."""
        outs, guards = self._inferred.of(record, self.after)
        if outs is not None:
            forms = [self._inferred.derivation.form_of(integer) for integer in integers_of(record, outs)]
            if not self._agree(forms, guards):
                return self.outs(record)
            if self._known.parts and any(self._joins(size, at) for at, size in enumerate(forms, len(self._forms))):
                self._joined.add(self._number)
            else:
                for position, size in enumerate(forms, len(self._forms)):
                    if size.number is None:
                        self._known.learn(position, size)
                self._forms += forms
                self._guards[self._number] = guards
                return tuple(outs)
        return self.outs(record)

    def _joins(self, size: Form, position: int) -> bool:
        """Return whether this expression of the integer at a position is the sum of parts of a constant size."""
        return len(size.symbols) > 1 and self._known.is_constant(position)

    def _agree(self, forms: Sequence[Form], guards: Sequence[Guard]) -> bool:
        """Return whether these expressions give the next integers of all samples, and the guards hold there."""
        start = len(self._forms)
        for row, integers in enumerate(self._known.table[:, start : start + len(forms)].tolist()):
            sizes = self._known.sizes(row)
            if [size.at(sizes) for size in forms] != integers or not all(guard.at(sizes) for guard in guards):
                return False
        return True
