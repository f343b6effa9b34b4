"""Counts of elements that are not 0, each read once from the device.

An op at a mask, its gradient and further ops at that mask need the same count, and a read cuts the trace. A value is
immutable, so its count holds as long as the value has the buffer from which it was read: a rehearsal and a failed cut
give it another one.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

from lazytpu.frontend.tensors import is_natural, value_of
from lazytpu.trace.value import Value

_COUNTS = WeakKeyDictionary[Value, dict[Any, tuple[ref[Any], int]]]()
"""For each value and view of it, the buffer that the value had, and the count."""


def count_of(tensor: torch.Tensor) -> int:
    """Return the number of elements of a tensor on the device that are not 0. The first call for a value reads it."""
    value = value_of(tensor)
    natural = is_natural(tensor, value.layout)
    view = None if natural else (tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype)
    buffer, count = _COUNTS.get(value, {}).get(view, (None, 0))
    if buffer is not None and buffer() is value.buffer:
        return count
    count = int((tensor != 0).sum().item())
    if value.buffer is not None:  # it may still be pending, if the host knew the count
        _COUNTS.setdefault(value, {})[view] = ref(value.buffer), count
    return count
