"""Size expressions for the integers of a trace: fitted or guessed for op arguments, derived for results.

An expression of an argument may be wrong until another trace refutes it. It never makes a result wrong: a program
serves a trace only if all expressions give exactly its integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from lazytpu.engine.sizes.fitting import LOWEST, NAMES, Fitting, NoForm, Varying, simplest
from lazytpu.engine.sizes.guesses import Guesses
from lazytpu.engine.sizes.results import Derived, Results
from lazytpu.engine.sizes.skeletons import OTHER, Integers, trace_apart
from lazytpu.ir.forms import Form, symbol
from lazytpu.ir.symbolic import Guard
from lazytpu.ports import Inference
from lazytpu.trace.trie import Record

MANY = (*NAMES, "g", "f", "e", "d", "c", "b")
"""Names for the symbols of a first pass, in which some symbols may turn out to be expressions of others."""


def fit_derived(
    samples: Sequence[np.ndarray],
    kinds: np.ndarray,
    records: Sequence[Record],
    inference: Inference,
    apart: bool = False,
) -> Varying | None:
    """Return the size expressions that agree with all samples of the integers of these records.

    Return None if more symbols than `NAMES` would be needed. With `apart`, an argument's size is never another size
    plus a constant; it is a product, or a symbol of its own.
    """
    table = np.stack(samples)
    trace_apart(records, into := Integers([], []))
    follows = {tuple(column) for column in table.T[into.made].tolist()} if apart else None

    def fitting(symbols: Mapping[str, int] = MappingProxyType({}), names: Sequence[str] = NAMES) -> Fitting:
        return Fitting(table, kinds, follows, symbols, names)

    # Arguments, in the order of the trace, show the sizes that are no expressions of earlier ones. If a number is no
    # expression of earlier sizes, such as the length of zeros, consider the sizes of the whole trace.
    try:
        first = _walk(fitting(names=MANY), records, inference)
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
            varying = _walk(fitting(symbols), records, inference)
        except NoForm:
            return None
        follow = _dependent(varying)
        if not follow:
            return varying
        symbols = {name: at for name, at in symbols.items() if name not in follow}
    return None


def _dependent(varying: Varying) -> list[str]:
    """Return the symbols that are expressions of others."""
    return [name for name, at in varying.symbols.items() if varying.forms[at] != symbol(name)]


def _walk(known: Fitting, records: Sequence[Record], inference: Inference) -> Varying:
    """Return the size expression of each integer of these records. Raise NoForm if an integer has none."""
    results, samples, begun = Results(inference), range(len(known.table)), set[str]()

    def begin() -> None:
        for name in known.symbols.keys() - begun:
            begun.add(name)
            kind = int(known.kinds[known.symbols[name]])
            results.begin(name, LOWEST[kind], known.sizes(-1)[name])

    def given(position: int) -> Form:
        size = known.choose(position)
        begin()
        return size

    def learn(start: int, forms: Sequence[Form], guards: Sequence[Guard]) -> bool:
        for row in samples:
            sizes, integers = known.sizes(row), known.table[row, start : start + len(forms)].tolist()
            if [form.at(sizes) for form in forms] != integers or not all(guard.at(sizes) for guard in guards):
                return False
        for position, form in enumerate(forms, start):
            if form.number is None:
                known.learn(position, form)
        return True

    begin()
    return Varying(Derived(records, results, given, learn).forms, known.symbols, results)


def fit_guessed(guesses: Guesses, records: Sequence[Record], inference: Inference) -> Varying | None:
    """Return the size expressions of one trace of these records, or None if a symbol is an expression of others."""
    varying = _walk(guesses, records, inference)
    return None if _dependent(varying) else varying
