"""Forms of the integers of a trace: those of what ops are given are fitted or guessed, those of results derived.

A form of what an op is given may be wrong, and then another trace shows that; it is never a wrong result, since a
program serves a trace only if all forms give exactly its integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from lazytpu.engine.sizes.fitting import LOWEST, NAMES, Fitting, NoForm, Varying, fewest, varying_of
from lazytpu.engine.sizes.results import Results, Walk
from lazytpu.engine.sizes.skeletons import LEAST, OTHER, Integers, trace_apart
from lazytpu.ir.forms import Form, symbol
from lazytpu.ir.symbolic import Guard
from lazytpu.ports import Inference
from lazytpu.trace.trie import Record

MANY = tuple([f"s{number}" for number in range(12)])
"Symbols of a trace of which some may be forms of others."


def fit_derived(
    samples: Sequence[np.ndarray],
    kinds: np.ndarray,
    records: Sequence[Record],
    inference: Inference,
    apart: bool = False,
) -> Varying | None:
    """What varies between samples of the integers of these records. None if these are no forms of `NAMES`. With
    `apart` no size that ops are given is another but for a number, or a product."""
    table = np.stack(samples)
    trace_apart(records, into := Integers([], []))
    follows = {tuple(column) for column in table.T[into.made].tolist()} if apart else None

    def fitting(symbols: Mapping[str, int] = MappingProxyType({}), names: Sequence[str] = NAMES) -> Fitting:
        return Fitting(table, kinds, True, follows, symbols, names)

    # What ops are given, in the order of the trace, shows the sizes that are no forms of others in front of them. Where
    # a number is none of what came so far, such as the length of zeros, all sizes are looked at first.
    try:
        forms = _walk(first := fitting(names=MANY), records, inference)
        places = [*first.symbols.values()]
    except NoForm:
        forms, given = None, kinds != OTHER
        given[into.made] = False
        places = np.flatnonzero(given).tolist()
    symbols = fewest(fitting, places)
    if forms is not None and symbols is not None and sorted(symbols.values()) == sorted(places):  # no form of others
        names = {name: symbol(NAMES[number]) for number, name in enumerate(first.symbols)}
        return varying_of([each.where(names) for each in forms], table[-1], dict(zip(NAMES, places, strict=False)))
    while symbols is not None:
        known = fitting(symbols)
        try:
            forms = _walk(known, records, inference)
        except NoForm:
            return None
        follow = [name for name, at in known.symbols.items() if forms[at] != symbol(name)]
        if not follow:
            return varying_of(forms, table[-1], known.symbols)
        symbols = {name: at for name, at in symbols.items() if name not in follow}
    return None


def _walk(known: Fitting, records: Sequence[Record], inference: Inference) -> list[Form]:
    """The form of each integer. Raises NoForm."""
    results, samples, begun = Results(inference), range(len(known.table)), set[str]()

    def begin() -> None:
        for name in known.symbols.keys() - begun:
            begun.add(name)
            kind = int(known.kinds[known.symbols[name]])
            results.begin(name, LOWEST[kind], known.sizes(-1)[name])

    def given(position: int) -> Form:
        found = known.choose(position)
        begin()
        return found

    def learn(start: int, forms: Sequence[Form], guards: Sequence[Guard]) -> bool:
        for row in samples:
            sizes, integers = known.sizes(row), known.table[row, start : start + len(forms)].tolist()
            if [each.at(sizes) for each in forms] != integers or not all(guard.at(sizes) for guard in guards):
                return False
        for position, each in enumerate(forms, start):
            if each.number is None:
                known.learn(position, each)
        return True

    begin()
    return Walk(records, results, given, learn).forms


def spread(
    symbols: Mapping[str, int],
    integers: np.ndarray,
    records: Sequence[Record],
    inference: Inference,
    given: Callable[[int], Form],
    learn: Callable[[int, Form], None],
) -> Varying | None:
    """The forms of one trace of these records, of which `given` has those of what ops are given. It is told of the
    others by `learn`. None where a symbol follows from others."""
    results, sizes = Results(inference), {name: int(integers[at]) for name, at in symbols.items()}
    for name, size in sizes.items():
        results.begin(name, min(LEAST, size), size)

    def learn_all(start: int, forms: Sequence[Form], guards: Sequence[Guard]) -> bool:
        if [each.at(sizes) for each in forms] != integers[start : start + len(forms)].tolist():
            return False
        for position, each in enumerate(forms, start):
            learn(position, each)
        return True

    forms = Walk(records, results, given, learn_all).forms
    own = all(forms[at] == symbol(name) for name, at in symbols.items())
    return varying_of(forms, integers, symbols) if own else None
