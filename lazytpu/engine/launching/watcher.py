"""Times at which runs start and end, measured by a thread that waits for them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lazytpu.runtime.xla import client


@dataclass(frozen=True, slots=True)
class Watched:
    """Arrays that are ready when some runs are done, and the arrays `before` these that the device computes first.

    `done` is called with the times at which the runs started, not before `at`, and ended.
    """

    before: Sequence[Any]
    at: float
    after: Sequence[Any]
    done: Callable[[float, float], None]


class Watcher:
    """Waits for runs, in their order. Its thread starts with the first one that is not done yet."""

    def __init__(self) -> None:
        self._watched: queue.SimpleQueue[Watched | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, watched: Watched) -> None:
        """Measure runs on the thread, or on this one once that is closed."""
        if self._closed:
            _measure(watched)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lazytpu device timer", daemon=True)
            self._thread.start()
        self._watched.put(watched)

    def _run(self) -> None:
        while (watched := self._watched.get()) is not None:
            _measure(watched)

    def drain(self) -> None:
        """Wait until all runs so far are measured."""
        if self._thread is not None and not self._closed:
            drained = threading.Event()
            self._watched.put(Watched((), 0.0, (), lambda start, end: drained.set()))
            drained.wait()

    def close(self, end: float) -> bool:
        """End the thread by `end` (time.monotonic()). Return whether it has ended."""
        self._closed = True
        if self._thread is None:
            return True
        self._watched.put(None)
        self._thread.join(min(threading.TIMEOUT_MAX, max(0.0, end - time.monotonic())))
        return not self._thread.is_alive()


def _measure(watched: Watched) -> None:
    start = max(_ready(watched.before), watched.at) if watched.before else watched.at
    watched.done(start, max(_ready(watched.after), start))


def _ready(arrays: Sequence[Any]) -> float:
    """Wait for arrays and return the time. A run that failed is done; the next read reports its error."""
    for array in arrays:
        try:
            client.wait([array])
        except RuntimeError:
            continue
    return time.perf_counter()


class Point:
    """A point in the device's queue, reached at the time `seconds` (time.perf_counter()) when all runs launched before
    it are done."""

    __slots__ = ("_reached", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._reached = threading.Event()

    @property
    def is_reached(self) -> bool:
        """Whether the device has come to the point."""
        return self._reached.is_set()

    def reach(self, seconds: float) -> None:
        """Note the time at which the device has come to the point."""
        self.seconds = seconds
        self._reached.set()

    def wait(self) -> float:
        """Wait until the point is reached, and return its time."""
        self._reached.wait()
        return self.seconds
