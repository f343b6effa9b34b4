"""The device memory of one value, where it came from, and the count of what is alive."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from lazytpu.runtime.errors import OutOfMemory
from lazytpu.runtime.xla import client

LARGE = 1 << 30  # bytes of one run that the system is asked about: it would rather end the process than refuse them


class DeviceMemory:
    """Bytes of device memory that buffers hold: `live` now, and the `peak` since the start or `reset_peak`.

    The peak includes the temporaries of running programs by XLA's analysis (`note_execution`). Counted, not measured,
    so it is the same on every platform. `limit` is what no run may exceed, `exhausted` how often memory was too small.
    Each update is one read and one write of a slot, which the interpreter does not interrupt, so no lock is needed.
    """

    __slots__ = ("available", "exhausted", "limit", "live", "peak")

    def __init__(self) -> None:
        self.live = 0
        self.peak = 0
        self.limit: float = inf
        self.available: Callable[[], float] = lambda: inf
        self.exhausted = 0

    def note_execution(self, temporaries: int, outputs: int, aliased: int) -> None:
        """Call before a run's results, or data of the host, become buffers: what was alive, plus outputs in memory of
        their own, plus temporaries, is what this needs.

        Raises OutOfMemory when that is more than there can be: XLA would find out too late, with the inputs donated.
        """
        needed = self.live + outputs - aliased + temporaries
        if needed > self.peak or needed > self.limit:  # the limit may be less than there was before it was set
            if needed > self.limit:
                raise OutOfMemory("the program", f"RESOURCE_EXHAUSTED: it needs {needed} bytes of {self.limit:.0f}")
            new = outputs - aliased + temporaries
            if new > LARGE and new > (free := self.available()):
                raise OutOfMemory("the program", f"RESOURCE_EXHAUSTED: it needs {new} bytes more, {free:.0f} are free")
            self.peak = needed

    def reset_peak(self) -> None:
        self.peak = self.live


MEMORY = DeviceMemory()


class Origin:
    """What made a value: shared by the buffers of one result of a program, so that knowing it costs a run nothing.

    Attributes: `op` ("aten.mm.default", or "upload" for data of the host), `line` (its source line, any object whose
    str() is one, or None), `program` (the name of the program that computed it, None for an upload).
    """

    __slots__ = ("line", "op", "program")

    def __init__(self, op: str, line: Any, program: str | None) -> None:
        self.op = op
        self.line = line
        self.program = program

    def __repr__(self) -> str:
        return f"<{self.op} at {self.line} of {self.program}>"


class Buffer:
    """The device memory of one value.

    `host` are the elements of a constant that is known (`ConstantBuffer`), else None.
    Attributes: `array` (None once donated), `nbytes` (counted in `MEMORY` while this lives), `origin` (what made it, if
    anything says so), `pins` (how many hold it for reasons of their own, such as an export; not donated while > 0),
    `error` (why its contents are lost, or None), `outcome` (how the run that made it ended; None
    for data of the host).
    """

    __slots__ = ("__weakref__", "array", "error", "nbytes", "origin", "outcome", "pins")
    host: Any = None

    def __init__(self, array: Any, nbytes: int, origin: Origin | None = None, outcome: Any = None) -> None:
        self.array = array
        self.nbytes = nbytes
        self.origin = origin  # 13 ns of the 260 that a buffer costs
        self.outcome = outcome
        self.pins = 0
        self.error: BaseException | None = None
        MEMORY.live = live = MEMORY.live + nbytes
        if live > MEMORY.peak:
            MEMORY.peak = live

    def __del__(self, memory: DeviceMemory = MEMORY) -> None:
        # Runs at any time on any thread: it touches the counter and nothing else. The counter is a default, since at
        # the end of the process the module's names are gone before the last buffers.
        memory.live -= self.nbytes

    def fetch(self) -> np.ndarray[Any, Any]:
        """The value on the host, to read at once: perhaps the memory of the device. Raises RunError when what makes it
        failed."""
        return client.to_host(self.array, copy=False)

    def gone(self) -> bool:
        """Whether the value is gone: donated to a run, or never computed."""
        return self.array is None

    def taken(self) -> bool:
        """Whether a run that failed has taken the memory of a value that is not released yet."""
        array = self.array  # once: another thread may release it meanwhile
        return array is not None and client.is_deleted(array)

    def count(self, nbytes: int) -> None:
        """Counts as many bytes more, or less if negative."""
        self.nbytes += nbytes
        MEMORY.live = live = MEMORY.live + nbytes
        if live > MEMORY.peak:
            MEMORY.peak = live

    def release(self) -> None:
        """Gives the array up: its memory was donated to a run and now counts as that run's results."""
        MEMORY.live -= self.nbytes
        self.nbytes = 0
        self.array = None


class ConstantBuffer(Buffer):
    """The memory of a constant, with its elements on the `host` as well: reading it does not wait for the device. Many
    values share it, so that it is pinned for good."""

    __slots__ = ("host",)

    def __init__(self, array: Any, nbytes: int, origin: Origin | None, host: np.ndarray[Any, Any]) -> None:
        super().__init__(array, nbytes, origin)
        self.host = host
        self.pins = 1
