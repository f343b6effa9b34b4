"""Device buffers of plain Python, for a recorder without an engine."""

from __future__ import annotations

from typing import Any

from lazytpu.trace.pending import Trace


class Memory:
    """A device buffer. A constant has its elements on the `host`, and a failed run has its `error`."""

    def __init__(self, host: Any = None, error: BaseException | None = None) -> None:
        self.host = host
        self.error = error
        self.constant = host is not None
        self.pins = 0


def give_memory(trace: Trace) -> None:
    """Give live results memory, as a cut does."""
    for reference in trace.values:
        value = reference()
        if value is not None and value.buffer is None:
            value.buffer = Memory()
