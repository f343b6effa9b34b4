"""Layouts of results, derived from the layouts of operands at symbolic sizes.

torch's meta functions compute with symbolic sizes (`lazytpu.aten.symbolic_ints`), as its decompositions do in the
import of a bucket. Nothing is derived from a meta function that needs the number of a size, or is written in C++ only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from lazytpu.aten.symbolic_ints import from_torch, to_torch
from lazytpu.engine.sizes.skeletons import Layouts, with_sizes
from lazytpu.engine.sizes.strides import dense_order, dense_strides, plain
from lazytpu.ir.symbolic import Derivation, Guard, Size
from lazytpu.ports import Inference
from lazytpu.trace.extract import operands
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout

Outs = Sequence[Layout | None]
LARGEST = 1 << 31
"""Integers from here on are no sizes, such as the open end of a slice, 2**63 - 1."""


class Results:
    """Derives the layouts of the results of records, and caches them."""

    def __init__(self, inference: Inference) -> None:
        self.derivation = Derivation({})
        self._inference = inference
        self._known: dict[Any, tuple[Outs | None, tuple[Guard, ...]]] = {}

    def begin(self, name: str, least: int, at: int) -> None:
        """Declare a symbol that is at least `least`. Comparisons are decided by its value `at`, and become guards."""
        self.derivation.symbols[name] = least, LARGEST
        self.derivation.bound[name] = at

    def of(self, record: Record, layouts: Layouts) -> tuple[Outs | None, tuple[Guard, ...]]:
        """Return the layouts of a record's results and the guards under which they hold. The layouts are None if
        unknown.

        `layouts` are the layouts of the slots that the record reads.
        """
        key = record.op, tuple([(name, self._key(value, layouts)) for name, value in record.arguments.items()])
        derived = self._known.get(key)
        if derived is None:
            self.derivation.guards = {}
            derived = self._known[key] = self._derived(record, layouts), tuple(self.derivation.guards)
        return derived

    def _key(self, value: Any, layouts: Layouts) -> Any:
        """Return the hashable part of an argument on which results depend."""
        if isinstance(value, Size):
            return value.form
        if isinstance(value, Operand):
            dtype, size, stride = layouts[value.slot].key
            if value.view is not None:
                size, stride, _, dtype = value.view
            return self._key(size, layouts), self._key(stride, layouts), dtype
        if isinstance(value, list | tuple):
            return tuple([self._key(item, layouts) for item in cast("Sequence[Any]", value)])
        return type(value), repr(value) if isinstance(value, float | complex) else value

    def _derived(self, record: Record, layouts: Layouts) -> Outs | None:
        """Return the layouts that torch's meta function infers with symbolic sizes, or None if it fails."""
        arguments = with_sizes(record.arguments, to_torch)
        slots = {operand.slot for value in arguments.values() for operand in operands(value)}
        read = {slot: with_sizes(layouts[slot], to_torch) for slot in slots}
        try:
            outs = self._inference.derived(replace(record, arguments=arguments), read)
            return list(map(_ordered, record.outs, outs))
        except Exception:  # noqa: BLE001  (LostSize, or any error of a meta function that does not expect SymInts)
            return None


def integers_of(record: Record, outs: Outs) -> list[Any]:
    """Return the integers of these layouts of a record's results, in the order of `take_apart`."""
    integers = list[Any]()
    for recorded, layout in zip(record.outs, outs, strict=True):
        if recorded is not None and layout is not None:
            integers += layout.shape
            if dense_order(plain(recorded).shape, plain(recorded).stride) is None:
                integers += layout.stride
    return integers


def _ordered(own: Layout | None, derived: Layout | None) -> Layout | None:
    """Return a derived layout, with SymInts, as one with sizes in the memory order of the recorded one. Raise
    ValueError if they are incompatible."""
    if own is None or derived is None:
        if own is derived:
            return None
        raise ValueError("there is another number of results")
    canonical, (shape, stride) = plain(own), from_torch((derived.shape, derived.stride))
    order = dense_order(canonical.shape, canonical.stride)
    if own.dtype != derived.dtype or len(own.shape) != len(shape):
        raise ValueError("it is another kind of result")
    if order is None:
        return Layout(derived.dtype, shape, stride)
    dense = dense_strides(shape, order)
    if any(n != 1 and step != derived_step for n, step, derived_step in zip(own.shape, dense, stride, strict=True)):
        raise ValueError("it lies in memory in another way")
    return Layout(derived.dtype, shape, dense)
