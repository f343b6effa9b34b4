"""The error boundary around the search for programs and states to share.

Every trace has its exact program, so an exception in the search never reaches the user's op: there is then nothing to
share. It still is a bug. `lazytpu.metrics()` counts it, the last tracebacks are kept, and the project's tests fail on
it. Expected refusals, such as `OneSize`, are caught inside the boundary.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

KEPT = 16
"""Number of the most recent tracebacks that are kept."""


@dataclass
class Unexpected:
    """Counts the exceptions since the start or the last `reset`, which keeps `tracebacks`."""

    count: int = 0
    tracebacks: deque[str] = field(default_factory=lambda: deque[str](maxlen=KEPT))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, doing: str, error: Exception) -> None:
        """Count an exception that was raised while `doing` something, and keep its traceback."""
        text = "".join(traceback.format_exception(error))
        with self._lock:
            self.count += 1
            self.tracebacks.append(f"while {doing}: {text}")

    def reset(self) -> None:
        """Set the count to zero."""
        self.count = 0


UNEXPECTED = Unexpected()
"""The unexpected exceptions of this process."""


@contextmanager
def looking_for(place: str) -> Iterator[None]:
    """Record and suppress exceptions, as a context or a decorator. Interrupts and MemoryError propagate."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  (any: see above)
        UNEXPECTED.note(f"looking for {place}", error)
