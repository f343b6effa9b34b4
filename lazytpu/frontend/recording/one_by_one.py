"""Lists of tensors that are computed one by one: those that share elements, and those on several devices.

torch writes tensors that share elements one after the other, and each sees the earlier writes. A record reads all its
operands before it writes. So the op is recorded for each element separately if an element of a list is written, and
another one reads or writes the same memory. An example is a tensor that is in a list twice.

A `_foreach_` op takes lists whose elements are on several devices, as long as the operands of each element are on one.
`_foreach_copy_` also copies between devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

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


def on_several_devices(op: OpOverload, values: Sequence[Any]) -> bool:
    """Return whether a `_foreach_` op has elements on other devices, and can be computed for each element alone."""
    lists = _lists(values)
    if not str(op).startswith("aten._foreach_") or not lists or len({len(tensors) for tensors in lists}) > 1:
        return False
    divisible = len(lists[0]) > 1 or op is torch.ops.aten._foreach_copy_.default
    return divisible and any(tensor.device.type != "tpu" for tensors in lists for tensor in tensors)


def on_each_device(op: OpOverload, call: Callable[[Sequence[Any]], Any], values: Sequence[Any]) -> list[Tensor] | None:
    """Compute a `_foreach_` op for each element, on the element's device."""
    count, results = len(_lists(values)[0]), list[Tensor]()
    for i in range(count):
        if op is torch.ops.aten._foreach_copy_.default:
            values[0][i].copy_(values[1][i])
        else:
            element = [v[i : i + 1] if isinstance(v, list | tuple) and len(v) == count else v for v in values]
            results += call(element) or ()
    return results if op._schema.returns else None


def _lists(values: Sequence[Any]) -> list[Sequence[Tensor]]:
    return [v for v in values if isinstance(v, list | tuple) and v and isinstance(v[0], Tensor)]
