"""The sizes at which the views of a trace stay inside tensors that do not vary with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

from lazytpu.ir.forms import Form
from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.trie import Record
from lazytpu.trace.value import Layout


class Views:
    """The views of records with symbolic sizes; `form_of` returns the expression of a size. Views equal at all sizes
    are kept once."""

    def __init__(self, records: Sequence[Record], form_of: Callable[[Any], Form]) -> None:
        layouts = Slots(records).layouts
        views = [
            (layouts[operand.slot], operand.view)
            for record in records
            for argument in record.arguments.values()
            for operand in operands(argument)
            if operand.view is not None
        ]

        def forms(numbers: Iterable[Any]) -> tuple[Form, ...]:
            return tuple(map(form_of, numbers))

        def forms_of(layout: Layout, view: tuple[Any, ...]) -> tuple[Any, ...]:
            size, stride, offset, dtype = view
            base = layout.dtype, forms(layout.shape), forms(layout.stride)
            return *base, forms(size), forms(stride), form_of(offset), dtype

        self._views = dict.fromkeys([forms_of(*number) for number in views])
        self._forms = {number for _, *groups, at, _ in self._views for form in (*groups, (at,)) for number in form}

    def ends(self, sizes: Mapping[str, int]) -> list[Any]:
        """Return for each view False if it leaves its storage, else whether it ends inside each dimension (a tuple)."""
        at = {form: form.at(sizes) for form in self._forms}

        def numbers(forms: Iterable[Form]) -> tuple[int, ...]:
            return tuple([at[form] for form in forms])

        return [
            _end(Layout(kind, numbers(shape), numbers(steps)), numbers(size), numbers(stride), at[offset], dtype)
            for kind, shape, steps, size, stride, offset, dtype in self._views
        ]

    def fit(self, sizes: Mapping[str, int], like: list[Any]) -> bool:
        """Return whether each view stays inside its storage and, where `like` says so, inside its dimensions.

        `like` is the result of `ends` at other sizes: a slice of a row must not become longer than the row.
        """
        ends = self.ends(sizes)
        return False not in ends and ends == like


def _end(layout: Layout, size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: Any) -> Any:
    """Return False for a view that leaves its storage. Else return, for each of its dimensions that matches a dimension
    of the storage, whether the view ends inside it."""
    if 0 in size:
        return ()
    moving = [(n, step) for n, step in zip(size, stride, strict=True) if n > 1]
    last = offset + sum((n - 1) * step for n, step in moving)
    if offset < 0 or (last + 1) * dtype.itemsize > prod(layout.shape) * layout.dtype.itemsize:
        return False
    dims = {step: n for n, step in zip(layout.shape, layout.stride, strict=True) if n > 1}
    return tuple([step in dims and offset // step % dims[step] + n <= dims[step] for n, step in moving])
