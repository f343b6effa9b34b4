"""The order in which a rank runs its collectives, whichever threads launch them.

On the wire, only its members and their order identify a collective. A TPU runs programs in the order of their launches.
XLA's CPU client orders only the programs of one thread: a program whose inputs are ready runs at once, ahead of
programs that another thread launched and that wait for their inputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from lazytpu.runtime.errors import RunError
from lazytpu.runtime.xla import client

T = TypeVar("T")
_ORDERED = ("tpu", "gpu")  # platforms that run programs in the order of their launches


class CollectiveOrder:
    """Lets a thread launch a collective once the last one of another thread is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._status: Any = None

    def run(self, launch: Callable[[], tuple[T, Any]]) -> tuple[T, Any]:
        """Call `launch`, and return its results and its status, an array that is ready when the collective is done."""
        with self._lock:
            thread = threading.current_thread()
            if self._thread not in (None, thread) and client.platform() not in _ORDERED:
                with suppress(RunError):  # an error is raised by whoever reads the results
                    client.wait([self._status])
            results, status = launch()
            self._thread, self._status = thread, status
            return results, status
