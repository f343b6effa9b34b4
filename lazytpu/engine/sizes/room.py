"""How large a size may become: a part of a tensor ends with the tensor.

In `mask[:, :n]` of a mask with 100 columns, n is at most 100, whatever bound its bucket has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from lazytpu.ir.forms import Range
from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.trie import Record
from lazytpu.trace.value import Layout

At = Callable[[Mapping[str, int]], Sequence[Record]]
"Gives the records of a trace at other sizes."


def in_room(at: At, sizes: Mapping[str, int], symbols: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges of the symbols, each up to the greatest size at which the views of the trace are in their tensors as
    they are at `sizes`, with the others at their least sizes."""
    expected = _ends(at(sizes))
    low = {name: low for name, (low, _) in symbols.items()}

    def is_out(name: str, size: int) -> bool:
        return _ends(at({**low, name: size})) != expected

    found: dict[str, Range] = {}
    for name, (least, most) in symbols.items():
        tried = range(sizes[name], most + 1)
        if is_out(name, most):
            most = tried[max(0, bisect_right(tried, False, key=lambda size, name=name: is_out(name, size)) - 1)]
        found[name] = least, most
    return found


def _ends(records: Sequence[Record]) -> tuple[Any, ...]:
    """For each view in the records whether it lies in its tensor, and along which dimensions it ends in them."""
    layouts = Slots(records).layouts
    views = [
        (layouts[operand.slot], operand.view)
        for record in records
        for argument in record.arguments.values()
        for operand in operands(argument)
        if operand.view is not None
    ]
    return tuple([_end(layout, *view) for layout, view in views])


def _end(layout: Layout, size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: Any) -> Any:
    if dtype is not layout.dtype:  # its strides count other elements
        return None
    moving = [(n, t) for n, t in zip(size, stride, strict=True) if n > 1]
    if offset + sum((n - 1) * t for n, t in moving) >= prod(layout.shape):
        return False
    dims = {t: n for n, t in zip(layout.shape, layout.stride, strict=True) if n > 1}
    return tuple([t in dims and offset // t % dims[t] + n <= dims[t] for n, t in moving])
