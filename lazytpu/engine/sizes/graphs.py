"""What varies in a trace, as far as its compiled graphs know: they have expressions for their numbers.

Each graph has symbols of its own, which are sizes of its arguments. What one gives to the next has a size in both, so
that the symbols of the second are forms of those of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lazytpu.engine.sizes.fitting import NAMES, Varying, varying_of
from lazytpu.engine.sizes.results import Results
from lazytpu.engine.sizes.skeletons import (
    LEAST,
    Integers,
    Layouts,
    admitted_at,
    note_given,
    note_made,
    take_apart,
    trace_apart,
)
from lazytpu.ir.forms import Form, symbol
from lazytpu.ir.symbolic import Size, number_at_bound
from lazytpu.ports import Inference
from lazytpu.trace.extract import operands
from lazytpu.trace.trie import Operand, Record, State
from lazytpu.trace.value import Layout

Change = Callable[[Size], Any]
"Gives what comes in the place of a size."


class NoExpression(Exception):
    """Of a number that may vary nothing is known."""


def known_of(state: State, inference: Inference) -> Varying | None:
    """The forms of the integers of a trace that ends at `state`, in the order of `trace_apart`. None if no compiled
    graph knows them, or another record computes with what varies and numbers of its own."""
    edges = list(_edges(state))
    if not any(edge.sizes.symbolic for edge in edges):
        return None
    walk = _Walk(Results(inference))
    try:
        for edge in edges:
            walk.take(edge)
    except NoExpression:
        return None
    trace_apart(walk.records, integers := Integers([], []))
    forms = [walk.results.derivation.form_of(number) for number in integers.values]
    own = {walk.symbols[slot, dim]: at for at, slot, dim in admitted_at(walk.records) if (slot, dim) in walk.symbols}
    if not own or len(own) > len(NAMES) or {name for each in forms for name in each.symbols} != own.keys():
        return None
    names = {name: symbol(NAMES[number]) for number, name in enumerate(own)}
    here = np.array([number_at_bound(number) for number in integers.values], dtype=np.int64)
    return varying_of([each.where(names) for each in forms], here, dict(zip(NAMES, own.values(), strict=False)))


def _edges(state: State) -> list[State]:
    """The states up to this one, from the root on."""
    edges = [state]
    while edges[-1].parent is not None:
        edges.append(edges[-1].parent)
    return edges[::-1]


class _Walk:
    """The `records` of a trace with sizes. `symbols` has the names of the sizes of inputs that are symbols, by slot and
    dim."""

    def __init__(self, results: Results):
        self.results = results
        self.records: list[Record] = []
        self.symbols: dict[tuple[int, int], str] = {}
        self._layouts: Layouts = {}

    def take(self, edge: State) -> None:
        """Go on with the records of an edge. Raises NoExpression."""
        if edge.sizes.symbolic is None:
            for record in edge.recorded:
                self._append(record, told=False)
            return
        records, symbols = edge.sizes.symbolic
        inputs = {slot: layout for record in edge.recorded for slot, layout, _ in record.admitted}
        forms = {name: self._form(slot, dim, inputs) for name, (slot, dim) in symbols.items()}
        for record in records:
            self._append(with_sizes(record, lambda size: self.results.size(size.form.where(forms))))

    def _form(self, slot: int, dim: int, inputs: Layouts) -> Form:
        """A size of an argument of a graph: a form of what came so far, or a symbol."""
        layout = self._layouts.get(slot)
        if layout is not None:
            return self.results.derivation.form_of(layout.shape[dim])
        name = self.symbols[slot, dim] = f"g{len(self.symbols)}"
        self.results.begin(name, LEAST, inputs[slot].shape[dim])
        return symbol(name)

    def _append(self, record: Record, told: bool = True) -> None:
        """Add a record, with the sizes of its results. It may be `told` which of its numbers vary."""
        note_given(record, self._layouts)
        varies = self._varies(record)
        if varies and not told and _has_numbers(record):
            raise NoExpression
        if varies and not any(layout is not None and _is_symbolic(layout) for layout in record.outs):
            outs, _ = self.results.of(record, self._layouts)
            if outs is None:
                raise NoExpression
            record = replace(record, outs=tuple(outs))
        note_made(record, self._layouts)
        self.records.append(record)

    def _varies(self, record: Record) -> bool:
        """Whether a record takes what varies."""
        taken = (self._layouts[each.slot] for value in record.arguments.values() for each in operands(value))
        return any(map(_is_symbolic, taken)) or any(_sizes_of(record.arguments))


def _has_numbers(record: Record) -> bool:
    """Whether a record has integers of its own: arguments, or views of operands."""
    own = replace(record, admitted=(), outs=())
    take_apart(own, integers := Integers([], []))
    return bool(integers.values)


def _sizes_of(value: Any) -> Iterator[Size]:
    if type(value) is Size:
        yield value
    elif isinstance(value, Operand):
        yield from _sizes_of(value.view)
    elif isinstance(value, dict):
        yield from _sizes_of(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _sizes_of(each)


def _is_symbolic(layout: Layout) -> bool:
    return any(type(size) is Size for size in layout.shape)


def with_sizes(record: Record, change: Change) -> Record:
    """A record in which `change` gives what comes in the place of each size."""
    return replace(
        record,
        arguments={name: _argument(value, change) for name, value in record.arguments.items()},
        admitted=tuple([(slot, _layout(layout, change), empty) for slot, layout, empty in record.admitted]),
        outs=tuple([None if layout is None else _layout(layout, change) for layout in record.outs]),
    )


def _layout(layout: Layout, change: Change) -> Layout:
    if not _is_symbolic(layout):
        return layout
    return Layout(layout.dtype, _argument(layout.shape, change), _argument(layout.stride, change))


def _argument(value: Any, change: Change) -> Any:
    if type(value) is Size:
        return change(value)
    if isinstance(value, Operand):
        return value if value.view is None else Operand(value.slot, _argument(value.view, change))
    if type(value) in (list, tuple):
        return type(value)([_argument(each, change) for each in value])
    return value
