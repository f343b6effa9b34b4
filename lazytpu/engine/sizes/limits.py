"""Which sizes a trace can have: its views must lie inside of the tensors that do not vary with them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.trie import Record
from lazytpu.trace.value import Layout


def views_fit(records: Sequence[Record], like: Sequence[Record]) -> bool:
    """Whether each view begins and ends inside of the storage that it is of, and of its dimensions where it does so in
    the same records at other sizes: a part of a row does not become more than a row."""
    ends = _ends(records)
    return False not in ends and ends == _ends(like)


def _ends(records: Sequence[Record]) -> list[Any]:
    layouts = Slots(records).layouts
    return [
        _end(layouts[operand.slot], *operand.view)
        for record in records
        for argument in record.arguments.values()
        for operand in operands(argument)
        if operand.view is not None
    ]


def _end(layout: Layout, size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: Any) -> Any:
    """False for a view that leaves its storage. Else, for each of its dimensions that has a place in one dimension of
    the storage, whether it ends there."""
    if 0 in size:
        return ()
    moving = [(n, step) for n, step in zip(size, stride, strict=True) if n > 1]
    last = offset + sum((n - 1) * step for n, step in moving)
    if offset < 0 or (last + 1) * dtype.itemsize > prod(layout.shape) * layout.dtype.itemsize:
        return False
    dims = {step: n for n, step in zip(layout.shape, layout.stride, strict=True) if n > 1}
    return tuple([step in dims and offset // step % dims[step] + n <= dims[step] for n, step in moving])
