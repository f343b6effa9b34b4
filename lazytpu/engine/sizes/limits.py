"""The sizes at which the views of a trace stay inside tensors that do not vary with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from lazytpu.engine.sizes.skeletons import forms_in, with_sizes
from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.trie import Record


class Views:
    """The views of records with symbolic sizes. Views equal at all sizes are kept once."""

    def __init__(self, records: Sequence[Record]) -> None:
        layouts = Slots(records).layouts
        read = [o for record in records for value in record.arguments.values() for o in operands(value)]
        views = [(layouts[operand.slot].key, operand.view) for operand in read if operand.view is not None]
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
