"""Constants that host reads asked for, computed once (see `lazytpu.trace.constants`)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from lazytpu.runtime.buffer import Known
from lazytpu.trace.reads import Held
from lazytpu.trace.recorder import Trace
from lazytpu.trace.value import Layout, Value, resident

KEPT = 1024  # constants; with 1,024 elements each at the most, these are some megabytes


class Answers:
    """The constants that are known, the one asked for last at the end. Implements `lazytpu.trace.constants.Answers`.

    `run` runs a trace for one value; `answered` is called for each read that it saves.
    """

    def __init__(self, run: Callable[[Trace, Value], Known], answered: Callable[[], None]):
        self._run = run
        self._answered = answered
        self._kept: OrderedDict[Any, Known] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, key: Any) -> Known | None:
        """The buffer of a constant that was computed before."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
        self._answered()
        return found

    def compute(self, key: Any, trace: Trace, slot: int, layout: Layout) -> Known:
        """Run a trace for the one value of `slot`, and remember it; the least recently used is forgotten."""
        value = resident(layout, None)
        trace.values.extend([_nothing] * trace.state.slots)
        trace.values[slot] = Held(value)
        made = self._run(trace, value)
        with self._lock:
            self._kept[key] = made
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made

    def forget(self) -> None:
        """Have all of them computed anew: programs are made otherwise from now on."""
        with self._lock:
            self._kept.clear()


def _nothing() -> None:
    """In place of the values that need no buffer."""
