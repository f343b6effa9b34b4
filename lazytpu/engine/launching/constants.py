"""Constants requested by host reads, computed once (see `lazytpu.trace.constants`)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from lazytpu.runtime.buffers.buffer import ConstantBuffer, KnownBuffer
from lazytpu.trace.pending import Trace

MOST = 1024  # cached constants: with at most 1,024 elements each they take a few megabytes


class Constants:
    """A cache of constants, least recently used first; None marks one that could not be computed. It implements
    `lazytpu.trace.constants.ConstantReads`.

    `compute` runs a trace for the value of one slot, and `numbers` computes a trace of numbers on the host. `known` is
    called for each read without the device.
    """

    def __init__(
        self,
        compute: Callable[[Trace, int], ConstantBuffer | None],
        numbers: Callable[[Trace, Sequence[int]], list[KnownBuffer] | None],
        known: Callable[[], None],
    ):
        self._compute = compute
        self._numbers = numbers
        self._known = known
        self._constants: OrderedDict[Any, ConstantBuffer | None] = OrderedDict()
        self._lock = threading.Lock()

    def numbers(self, trace: Trace, wanted: Sequence[int]) -> list[KnownBuffer] | None:
        """Return the buffers of the slots `wanted`, computed on the host; None if it cannot."""
        buffers = self._numbers(trace, wanted)
        if buffers is not None:
            self._known()
        return buffers

    def answer(self, key: Any, trace: Trace, slot: int) -> ConstantBuffer | None:
        """Return the constant, computed at the first request. Evict the least recently used one if the
        cache is full."""
        with self._lock:
            cached = key in self._constants
            if cached:
                self._constants.move_to_end(key)
                constant = self._constants[key]
        if cached:
            if constant is not None:
                self._known()
            return constant
        constant = self._compute(trace, slot)
        with self._lock:
            self._constants[key] = constant
            if len(self._constants) > MOST:
                self._constants.popitem(last=False)
        return constant

    def forget(self) -> None:
        """Clear the cache, since the passes or the device have changed."""
        with self._lock:
            self._constants.clear()
