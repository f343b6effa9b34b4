"""Constants that host reads asked for, computed once (see `lazytpu.trace.constants`)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from lazytpu.runtime.buffer import Known
from lazytpu.trace.recorder import Trace

KEPT = 1024  # constants; with 1,024 elements each at the most, these are some megabytes


class Answers:
    """The constants that were asked for, the last one at the end, and None for what could not be computed. Implements
    `lazytpu.trace.constants.ConstantReads`.

    `compute` runs a trace for the value of one slot; `known` is called for each read that needs none.
    """

    def __init__(self, compute: Callable[[Trace, int], Known | None], known: Callable[[], None]):
        self._compute = compute
        self._known = known
        self._kept: OrderedDict[Any, Known | None] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, key: Any, trace: Trace, slot: int) -> Known | None:
        """The constant, computed when it is asked for first; the one not asked for for longest is forgotten."""
        with self._lock:
            there = key in self._kept
            if there:
                self._kept.move_to_end(key)
                found = self._kept[key]
        if there:
            if found is not None:
                self._known()
            return found
        found = self._compute(trace, slot)
        with self._lock:
            self._kept[key] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    def forget(self) -> None:
        """Have all of them computed anew: programs are made otherwise from now on."""
        with self._lock:
            self._kept.clear()
