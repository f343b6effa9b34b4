"""The sizes at which the views of a trace stay inside tensors that do not vary with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from lazytpu.aten.views.parts import dims_of
from lazytpu.engine.sizes.skeletons import forms_in, with_sizes
from lazytpu.engine.sizes.strides import begins_of
from lazytpu.ir.symbolic import has_sizes
from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.trie import Record
from lazytpu.trace.value import Layout

Moving = Collection[tuple[int, int]]
"""Views with run-time starts, as pairs of the number of a record and a slot (`lazytpu.aten.views.parts`)."""


def moving_views(records: Sequence[Record]) -> frozenset[tuple[int, int]]:
    """Return the views of records with symbolic sizes that begin at a place that varies, if all views that the record
    has of the slot run along dimensions of their storage, in steps of 1 and in any order."""
    layouts = Slots(records).layouts
    moving, fixed = set[tuple[int, int]](), set[tuple[int, int]]()
    for number, slot, view in _views(records):
        if not _has_dims(view, layouts[slot]):
            fixed.add((number, slot))
        elif has_sizes((view[2],)):
            moving.add((number, slot))
    return frozenset(moving - fixed)


def _has_dims(view: tuple[Any, ...], layout: Layout) -> bool:
    """Return whether a view runs along dimensions of its storage, in steps of 1 and in any order."""
    along = dims_of(view[:2], (layout.shape, layout.stride), layout.memory_order)
    return along is not None and begins_of(view, layout) is not None


def _views(records: Sequence[Record]) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Yield each view that a record reads: the number of the record, the slot, and the view."""
    for number, record in enumerate(records):
        for value in record.arguments.values():
            yield from [(number, operand.slot, view) for operand in operands(value) if (view := operand.view)]


class Views:
    """The views of records with symbolic sizes. Views equal at all sizes are kept once. The views `moving` fit wherever
    their sizes do, as if they began at the start of their storage."""

    def __init__(self, records: Sequence[Record], moving: Moving = ()) -> None:
        layouts = Slots(records).layouts
        views = [
            (layouts[slot].key, (size, stride, 0 if (number, slot) in moving else offset, dtype))
            for number, slot, (size, stride, offset, dtype) in _views(records)
        ]
        self._views = list({with_sizes(view, lambda size: size.form): view for view in views}.values())
        self._forms = forms_in(self._views)

    def ends(self, sizes: Mapping[str, int]) -> list[Any]:
        """Return for each view False if it leaves its storage, else whether it ends inside each dimension (a tuple)."""
        at = {form: form.at(sizes) for form in self._forms}
        return [_end(*with_sizes(view, lambda size: at[size.form])) for view in self._views]

    def fit(self, sizes: Mapping[str, int], like: list[Any]) -> bool:
        """Return whether each view stays inside its storage and, where `like` says so, inside its dimensions.

        `like` is the result of `ends` at other sizes: a slice of a row must not become longer than the row.
        """
        ends = self.ends(sizes)
        return False not in ends and ends == like


def _end(storage: tuple[Any, ...], view: tuple[Any, ...]) -> Any:
    """Return False for a view that leaves its storage. Else return, for each of its dimensions that matches a dimension
    of the storage, whether the view ends inside it."""
    (kind, shape, steps), (size, stride, offset, dtype) = storage, view
    if 0 in size:
        return ()
    moving = [(n, step) for n, step in zip(size, stride, strict=True) if n > 1]
    last = offset + sum((n - 1) * step for n, step in moving)
    if offset < 0 or (last + 1) * dtype.itemsize > prod(shape) * kind.itemsize:
        return False
    dims = {step: n for n, step in zip(shape, steps, strict=True) if n > 1}
    return tuple([step in dims and offset // step % dims[step] + n <= dims[step] for n, step in moving])
