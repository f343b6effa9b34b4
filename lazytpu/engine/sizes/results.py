"""Sizes of results, derived from those of what an op is given.

torch's meta functions compute with symbolic sizes (`lazytpu.aten.symbolic_ints`), as its decompositions do in the
import of a bucket. Where they need the number of a size, or are written in C++ alone, nothing is known of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from lazytpu.aten.symbolic_ints import from_torch, to_torch
from lazytpu.engine.sizes.skeletons import (
    Layouts,
    dense_order,
    dense_strides,
    new_layout,
    plain,
    trace_together,
)
from lazytpu.ir.forms import Form
from lazytpu.ir.symbolic import Derivation, Guard, Size
from lazytpu.ports import Inference
from lazytpu.trace.extract import operands
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout

Outs = Sequence[Layout | None]
LARGEST = 1 << 31
"A larger size is none, such as the open end of a slice, 2**63 - 1."


class Results:
    """Derives the layouts of the results of records."""

    def __init__(self, inference: Inference) -> None:
        self.derivation = Derivation({})
        self._inference = inference
        self._known: dict[Any, tuple[Outs | None, tuple[Guard, ...]]] = {}

    def begin(self, name: str, least: int, at: int) -> None:
        """There is another symbol, for any size from the `least` on, as far as guards hold. The size `at` answers."""
        self.derivation.symbols[name] = least, LARGEST
        self.derivation.bound[name] = at

    def size(self, of: Form) -> Any:
        """A form as a size."""
        return self.derivation.size(of)

    def of(self, record: Record, layouts: Layouts) -> tuple[Outs | None, tuple[Guard, ...]]:
        """The layouts of the results of a record, by those of the slots that it reads, and the guards under which they
        are these; None where they are not known."""
        key = record.op, tuple([(name, self._key(value, layouts)) for name, value in record.arguments.items()])
        found = self._known.get(key)
        if found is None:
            self.derivation.guards = {}
            found = self._known[key] = self._derived(record, layouts), tuple(self.derivation.guards)
        return found

    def _key(self, value: Any, layouts: Layouts) -> Any:
        """What the results of a record depend on, of an argument."""
        if isinstance(value, Size):
            return value.form
        if isinstance(value, Operand):
            own = layouts[value.slot]
            size, stride, dtype = (own.shape, own.stride, own.dtype) if value.view is None else _of_view(value.view)
            return self._key(size, layouts), self._key(stride, layouts), dtype
        if isinstance(value, list | tuple):
            return tuple([self._key(each, layouts) for each in cast("Sequence[Any]", value)])
        return type(value), repr(value) if isinstance(value, float | complex) else value

    def _derived(self, record: Record, layouts: Layouts) -> Outs | None:
        given = {name: _to_torch(value) for name, value in record.arguments.items()}
        slots = {operand.slot for value in given.values() for operand in operands(value)}
        read = {slot: _converted(layouts[slot], to_torch) for slot in slots}
        try:
            outs = self._inference.derived(replace(record, arguments=given), read)
            found = [None if out is None else _converted(out, from_torch) for out in outs]
            return list(map(_ordered, record.outs, found))
        except Exception:  # noqa: BLE001  (LostSize, and whatever a meta function raises at what it does not expect)
            return None


class Walk:
    """The form of each integer of a trace, in the order of `trace_apart`: `given` says those of what ops are given, and
    those of results of which nothing is known, by position; of the others it is told by `learn`, and says whether they
    are the integers that there are."""

    def __init__(
        self,
        records: Sequence[Record],
        results: Results,
        given: Callable[[int], Form],
        learn: Callable[[int, Sequence[Form], Sequence[Guard]], bool],
    ) -> None:
        self.forms: list[Form] = []
        self._results, self._given, self._learn = results, given, learn
        trace_together(records, self._integers(), self._outs)

    def _integers(self) -> Iterator[Any]:
        while True:
            self.forms.append(self._given(len(self.forms)))
            yield self._results.size(self.forms[-1])

    def _outs(self, record: Record, layouts: Layouts) -> Outs:
        if not record.outs:
            return ()
        outs, guards = self._results.of(record, layouts)
        if outs is not None:
            forms = [self._results.derivation.form_of(each) for each in integers_of(record, outs)]
            if self._learn(len(self.forms), forms, guards):
                self.forms += forms
                return outs
        return [None if layout is None else new_layout(plain(layout), self._integers()) for layout in record.outs]


def integers_of(record: Record, outs: Outs) -> list[Any]:
    """The integers of some layouts of a record's results, in the order of `take_apart`."""
    found = list[Any]()
    for own, layout in zip(record.outs, outs, strict=True):
        if own is not None and layout is not None:
            found += layout.shape
            if dense_order(plain(own).shape, plain(own).stride) is None:
                found += layout.stride
    return found


def _of_view(view: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    size, stride, _, dtype = view
    return size, stride, dtype


def _converted(layout: Layout, convert: Callable[[Any], Any]) -> Layout:
    return Layout(layout.dtype, convert(tuple(layout.shape)), convert(tuple(layout.stride)))


def _to_torch(value: Any) -> Any:
    """An argument of a record with SymInts."""
    if isinstance(value, Operand):
        return value if value.view is None else Operand(value.slot, to_torch(value.view))
    if isinstance(value, list | tuple):
        return type(value)([_to_torch(each) for each in cast("Sequence[Any]", value)])
    return to_torch(value)


def _ordered(own: Layout | None, derived: Layout | None) -> Layout | None:
    """A derived layout, if its dimensions lie in memory as those of the record do. Raises ValueError."""
    if own is None or derived is None:
        if own is derived:
            return None
        raise ValueError("there is another number of results")
    order = dense_order(plain(own).shape, plain(own).stride)
    if own.dtype != derived.dtype or len(own.shape) != len(derived.shape):
        raise ValueError("it is another kind of result")
    if order is None:
        return derived
    dense = dense_strides(derived.shape, order)
    moving = [i for i, n in enumerate(own.shape) if n != 1]
    if any(dense[i] != derived.stride[i] for i in moving):
        raise ValueError("it lies in memory in another way")
    return Layout(derived.dtype, derived.shape, dense)
