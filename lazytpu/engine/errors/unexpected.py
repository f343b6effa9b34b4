"""The error boundaries around everything that the engine can do without.

- The search for programs and states to share. Every trace has its exact program, so an exception in the search never
  reaches the user's op: there is then nothing to share. Expected refusals, such as `OneSize`, are caught inside.
- Attempts at a faster way, such as the host. The trace's program follows, and raises the errors of its ops.

An exception that is no refusal is a bug in both. `lazytpu.metrics()` counts it, the last tracebacks are kept, and the
project's tests fail on it.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

REFUSALS = (ArithmeticError, IndexError, MemoryError, OSError, RuntimeError, ValueError)
"""Kinds of exceptions by which torch's kernels, XLA and lazytpu refuse an op, its sizes, or its values."""
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


@contextmanager
def attempting(what: str) -> Iterator[None]:
    """Suppress exceptions, as a context, and record those that are not `REFUSALS`. Interrupts propagate."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (any: see above)
        note_bug(what, error)


def note_bug(doing: str, error: Exception) -> None:
    """Record an exception unless it is one of `REFUSALS`, or was raised because of one."""
    if not isinstance(error, REFUSALS) and not isinstance(error.__cause__, REFUSALS):
        UNEXPECTED.note(doing, error)
