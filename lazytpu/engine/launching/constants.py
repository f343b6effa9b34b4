"""Constants that host reads asked for, computed once (see `lazytpu.trace.constants`)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from lazytpu.runtime.buffers.buffer import ConstantBuffer
from lazytpu.trace.recorder import Trace

MOST = 1024  # constants; with at most 1,024 elements each, these are some megabytes


class Constants:
    """The constants that were asked for, the last one at the end, and None for what could not be computed. Implements
    `lazytpu.trace.constants.ConstantReads`.

    `compute` runs a trace for the value of one slot; `known` is called for each read that needs none.
    """

    def __init__(self, compute: Callable[[Trace, int], ConstantBuffer | None], known: Callable[[], None]):
        self._compute = compute
        self._known = known
        self._constants: OrderedDict[Any, ConstantBuffer | None] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, key: Any, trace: Trace, slot: int) -> ConstantBuffer | None:
        """The constant, computed when it is asked for first; the one not asked for for longest is forgotten."""
        with self._lock:
            there = key in self._constants
            if there:
                self._constants.move_to_end(key)
                constant = self._constants[key]
        if there:
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
        """Have all of them computed anew: programs are made otherwise from now on."""
        with self._lock:
            self._constants.clear()
