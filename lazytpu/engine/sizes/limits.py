"""Which sizes a trace can have: its views must lie inside of the tensors that do not vary with them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout


def views_fit(records: Sequence[Record]) -> bool:
    """Whether each view begins and ends inside of the storage that it is of."""
    layouts = Slots(records).layouts
    return all(
        _fits(operand, layouts)
        for record in records
        for argument in record.arguments.values()
        for operand in operands(argument)
        if operand.view is not None
    )


def _fits(operand: Operand, layouts: dict[int, Layout]) -> bool:
    assert operand.view is not None
    size, stride, offset, dtype = operand.view
    if 0 in size:
        return True
    layout = layouts[operand.slot]
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    return offset >= 0 and (last + 1) * dtype.itemsize <= prod(layout.shape) * layout.dtype.itemsize
