"""Size expressions that come from compiled graphs (torch.compile), which know their integers symbolically.

The symbols of each graph are sizes of its arguments. If one graph passes a tensor to the next, that tensor's sizes are
known in both. So the second graph's symbols are expressions of the first graph's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from lazytpu.engine.sizes.fitting import NAMES, NoForm, Varying
from lazytpu.engine.sizes.results import Results
from lazytpu.engine.sizes.skeletons import (
    STRUCTURE,
    Integers,
    Layouts,
    forms_in,
    note_given,
    note_made,
    trace_apart,
    with_sizes,
)
from lazytpu.ir.forms import Form, symbol
from lazytpu.ir.symbolic import MIN_SYMBOL, Size
from lazytpu.ports import Inference
from lazytpu.trace.extract import operands
from lazytpu.trace.trie import Operand, Record, State


def known_of(state: State, inference: Inference) -> Varying | None:
    """Return the size expressions of the trace that ends at `state`, in the order of `trace_apart`.

    Return None if no compiled graph knows them, or if an eager record combines varying operands with integers of its
    own.
    """
    edges = state.path()
    if not any(edge.sizes.symbolic for edge in edges):
        return None
    walk = _Walk(Results(inference))
    try:
        for edge in edges:
            walk.take(edge)
    except NoForm:
        return None
    trace_apart(walk.records, integers := Integers([], []))
    forms = [walk.results.derivation.form_of(number) for number in integers.values]
    inputs = {walk.symbols[slot, dim]: at for at, slot, dim in integers.inputs if (slot, dim) in walk.symbols}
    if not inputs or len(inputs) > len(NAMES) or {name for size in forms for name in size.symbols} != inputs.keys():
        return None
    names = {name: symbol(NAMES[number]) for number, name in enumerate(inputs)}
    return Varying([size.where(names) for size in forms], dict(zip(NAMES, inputs.values(), strict=False)))


class _Walk:
    """Rebuilds the `records` of a trace with symbolic sizes. `symbols` names the input sizes that are symbols, by slot
    and dimension."""

    def __init__(self, results: Results):
        self.results = results
        self.records: list[Record] = []
        self.symbols: dict[tuple[int, int], str] = {}
        self._layouts: Layouts = {}

    def take(self, edge: State) -> None:
        """Append the records of an edge. Raise NoForm if an integer of them may vary in an unknown way."""
        if edge.sizes.symbolic is None:
            for record in edge.recorded:
                self._append(record, told=False)
            return
        records, symbols = edge.sizes.symbolic
        inputs = {slot: layout for record in edge.recorded for slot, layout, _ in record.admitted}
        forms = {name: self._form(slot, dim, inputs) for name, (slot, dim) in symbols.items()}
        for record in records:
            self._append(with_sizes(record, lambda size: self.results.derivation.size(size.form.where(forms))))

    def _form(self, slot: int, dim: int, inputs: Layouts) -> Form:
        """Return the expression of an argument's size: the known one if the trace computed that argument, else a new
        symbol."""
        layout = self._layouts.get(slot)
        if layout is not None:
            return self.results.derivation.form_of(layout.shape[dim])
        name = self.symbols[slot, dim] = f"g{len(self.symbols)}"
        self.results.begin(name, MIN_SYMBOL, inputs[slot].shape[dim])
        return symbol(name)

    def _append(self, record: Record, told: bool = True) -> None:
        """Append a record, deriving the sizes of its results if needed. With `told` its integers are symbolic already.

        Raise NoForm if `told` is false and the record combines varying operands with integers of its own.
        """
        note_given(record, self._layouts)
        varies = self._varies(record)
        arguments = [value for name, value in record.arguments.items() if name not in STRUCTURE]
        if varies and not told and _has_numbers(arguments):
            raise NoForm
        if varies and not forms_in(record.outs):
            outs, _ = self.results.of(record, self._layouts)
            if outs is None:
                raise NoForm
            record = replace(record, outs=tuple(outs))
        note_made(record, self._layouts)
        self.records.append(record)

    def _varies(self, record: Record) -> bool:
        """Return whether an operand or argument of a record has a symbolic size."""
        taken = [self._layouts[operand.slot] for value in record.arguments.values() for operand in operands(value)]
        return bool(forms_in((taken, record.arguments)))


def _has_numbers(value: Any) -> bool:
    """Return whether an argument has integers of its own, or operands that are views."""
    if isinstance(value, list | tuple):
        return any(map(_has_numbers, cast("Sequence[Any]", value)))
    return value.view is not None if isinstance(value, Operand) else type(value) in (int, Size)
