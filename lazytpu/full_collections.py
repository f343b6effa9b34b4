"""Full garbage collections when the process has grown, and not in a steady loop.

Python counts the objects that survive young collections and visits all objects once these are a quarter of all, however
few of them are still alive. A training step replaces the objects of each parameter, so this happens every 70 steps,
and takes 0.3 s with torch, jax and a compiler loaded.

`Pacing` lets Python begin a full collection only when the process has in fact grown by a quarter since the last one: in
its objects, its memory, or that of the device. Garbage in the oldest generation can therefore hold no more than that. A
program that sets its own thresholds keeps these, and gc.collect() collects everything, as always.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

try:
    import resource
except ImportError:  # on Windows
    resource = None

PATTERN = (700, 10, 10), (2000, 10, 10)
"""Python's own thresholds, of the releases that collect in generations."""
CLOSED = 1009
"""The threshold of full collections while the process does not grow. A prime, by which thresholds are recognized that a
program derives from the current ones. Not infinite: it bounds garbage if the program removes all callbacks."""
GROWTH = 1.25  # as Python: a full collection when a quarter of the objects are new
_BETWEEN = 10  # young collections of the second generation from one look at the process to the next


class Pacing:
    """Begins full collections by the growth of the process; a callback of the garbage collector."""

    def __init__(self, device_bytes: Callable[[], int]) -> None:
        self.device_bytes = device_bytes
        self.open = self.threshold = gc.get_threshold()
        self.last = self._now()
        self.left = _BETWEEN

    def begin(self) -> None:
        """Pace collections from now on, unless the program has thresholds of its own."""
        if self.open in PATTERN:
            gc.callbacks.append(self)
            self._set(CLOSED)

    def _now(self) -> tuple[int, int, int]:
        """Return the allocated objects, the most memory in use so far, and the bytes of device memory."""
        peak = 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return sys.getallocatedblocks(), peak, self.device_bytes()

    def _set(self, threshold: int) -> None:
        self.threshold = (*self.open[:2], threshold)
        gc.set_threshold(*self.threshold)

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        generation = info["generation"]
        if phase != "stop" or not generation or not self._is_paced():
            return
        if generation == 2:
            self.last = self._now()
            self._set(CLOSED)
        else:
            self.left -= 1
            if not self.left:
                self.left = _BETWEEN
                self.look()

    def _is_paced(self) -> bool:
        """Return whether the thresholds are not the program's own. It may have derived them from the current ones: set
        the first alone, doubled all, or restored earlier ones. These take effect, as if it had read Python's own."""
        first, second, full = gc.get_threshold()
        if (first, second, full) != self.threshold:
            times, remainder = divmod(full, CLOSED)
            if remainder or not times:
                return False
            self.open = first, second, self.open[2] * times
            self._set(CLOSED)
        return True

    def look(self) -> None:
        """Let the next collection be a full one if the process has grown."""
        if self._is_paced() and self.threshold[2] == CLOSED:
            if any(now > GROWTH * last for now, last in zip(self._now(), self.last, strict=True)):
                self._set(self.open[2])


_pacing: list[Pacing] = []


def pace(device_bytes: Callable[[], int]) -> None:
    """Pace the full collections of this process."""
    if not _pacing:
        _pacing.append(Pacing(device_bytes))
        _pacing[0].begin()


def look() -> None:
    """Let the next collection be a full one if the process has grown; for the end of work that allocates much."""
    for pacing in _pacing:
        pacing.look()
