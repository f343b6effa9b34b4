"""Lists of tensors that share elements: torch writes one after the other, and each sees the earlier writes.

A record reads all its operands before it writes. So the op is recorded for each element separately if an element of a
list is written, and another one reads or writes the same memory. An example is a tensor that is in a list twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lazytpu.frontend.recording.codegen import KernelArgument

Span = tuple[int, int, int]
"""The first and the last byte that a tensor touches, and its index in its list; -1 outside a list."""


def shares_elements(arguments: Sequence[KernelArgument], values: Sequence[Any]) -> bool:
    """Return whether an element of a written list shares memory with an operand of another element."""
    lists = [v for a, v in zip(arguments, values, strict=True) if a.kind == "tensors" and a.written and v]
    if not lists or len(lists[0]) < 2:
        return False
    written = _spans(lists)
    touched = _spans([v for a, v in zip(arguments, values, strict=True) if a.kind in ("tensor", "tensors")])
    return any(
        first <= end and start <= last and owner != place
        for storage, spans in written.items()
        for start, end, place in spans
        for first, last, owner in touched[storage]
    )


def _spans(values: Sequence[Any]) -> dict[int, list[Span]]:
    """Return the bytes that the tensors among the arguments touch, by storage."""
    spans: dict[int, list[Span]] = defaultdict(list)
    for value in values:
        places = enumerate(value) if isinstance(value, list | tuple) else [(-1, value)]
        for place, tensor in places:
            if isinstance(tensor, Tensor) and tensor.numel():
                start = int(tensor.storage_offset()) * tensor.itemsize
                steps = sum((n - 1) * t for n, t in zip(tensor.shape, tensor.stride(), strict=True))
                spans[id(tensor.untyped_storage())].append((start, start + (steps + 1) * tensor.itemsize - 1, place))
    return spans


def record_each(call: Callable[..., Any], arguments: Sequence[KernelArgument], values: Sequence[Any]) -> None:
    """Call an op that writes lists for each of their elements, in order."""
    count = next(len(v) for a, v in zip(arguments, values, strict=True) if a.kind == "tensors" and a.written)
    for i in range(count):
        call([v[i : i + 1] if isinstance(v, list | tuple) and len(v) == count else v for v in values])
