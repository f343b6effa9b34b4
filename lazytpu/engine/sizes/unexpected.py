"""The boundary around code that only looks for programs and states to share.

A trace has its exact program whatever that code finds, so an exception in it never reaches the user's op: it means that
there is nothing to share. It is a bug, though, so it is counted in `lazytpu.metrics()`, the last ones are kept with
their tracebacks, and the project's tests fail where there is one. Refusals that are expected, such as `OneSize`, are
caught where they mean something, inside of the boundary.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

KEPT = 16
"Tracebacks that are kept, the last ones."


@dataclass
class Unexpected:
    """Counts the exceptions since the start or the last `reset`. `tracebacks` are not forgotten by that."""

    count: int = 0
    tracebacks: deque[str] = field(default_factory=lambda: deque[str](maxlen=KEPT))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, doing: str, error: Exception) -> None:
        """An exception was raised while `doing` something."""
        text = "".join(traceback.format_exception(error))
        with self._lock:
            self.count += 1
            self.tracebacks.append(f"while {doing}: {text}")

    def reset(self) -> None:
        """Start counting anew."""
        self.count = 0


UNEXPECTED = Unexpected()
"Those of this process."


class LookingFor:
    """A context that ends quietly where an exception is raised inside, and notes it. Interrupts and exhausted memory
    pass."""

    __slots__ = ("place",)

    def __init__(self, place: str):
        self.place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, Exception) or isinstance(error, MemoryError):
            return False
        UNEXPECTED.note(f"looking for {self.place}", error)
        return True
