"""The device memory of one value, its origin, and the count of live device memory."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from lazytpu.runtime.errors import OutOfMemory
from lazytpu.runtime.xla import client

# bytes; a run that needs more asks the system for free memory first, since Linux kills a process rather than refuse
LARGE = 1 << 30


class DeviceMemory:
    """Bytes of device memory held by buffers: `live` now, and the `peak` since the start or `reset_peak`.

    The peak includes the temporaries of running programs, by XLA's analysis (`note_execution`). It is counted, not
    measured, so it is the same on every platform. `limit` is the most that a run may need in total, and `exhausted`
    counts the runs that failed for lack of memory. Each update is one read and one write of a slot, which the
    interpreter does not interrupt, so no lock is needed.
    """

    __slots__ = ("available", "exhausted", "limit", "live", "peak")

    def __init__(self) -> None:
        self.live = 0
        self.peak = 0
        self.limit: float = inf
        self.available: Callable[[], float] = lambda: inf
        self.exhausted = 0

    def note_execution(self, temporaries: int, outputs: int, aliased: int) -> None:
        """Account for the memory of a run, or of an upload, before it starts.

        It needs `temporaries` and those bytes of `outputs` that are not `aliased` to donated inputs, besides all live
        memory.

        Raises OutOfMemory when that exceeds `limit` or the free memory. XLA would fail only after it has consumed the
        donated inputs.
        """
        needed = self.live + outputs - aliased + temporaries
        if needed > self.peak or needed > self.limit:  # `limit` may have been lowered below an earlier peak
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
    """The op that computed a value. All buffers of one result of a program share it, so a run pays nothing for it.

    Attributes: `op` ("aten.mm.default", or "upload" for data of the host), `line` (the source line, any object whose
    str() gives it, or None), `program` (the name of the program that computed it, None for an upload).
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

    Attributes: `array` (None once donated), `nbytes` (counted in `MEMORY` while the buffer lives), `origin` (the op
    that computed it, if recorded), `pins` (the number of holders, such as an export, that forbid donation), `error`
    (the reason its contents are lost, or None), `outcome` (the state of the run that computed it; None for data of the
    host), `host` (the elements of a `KnownBuffer`, else None), `constant` (whether it is a `ConstantBuffer`).
    """

    __slots__ = ("__weakref__", "array", "error", "nbytes", "origin", "outcome", "pins")
    host: Any = None
    constant = False

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
        """Return the value on the host, possibly as a view of device memory, so read it at once. Raises RunError when
        the run that computes it failed."""
        return client.to_host(self.array, copy=False)

    def gone(self) -> bool:
        """Whether the value was donated to a run, or never computed."""
        return self.array is None

    def taken(self) -> bool:
        """Whether a failed run has consumed the array of a value that was not released."""
        array = self.array  # once: another thread may release it meanwhile
        return array is not None and client.is_deleted(array)

    def count(self, nbytes: int) -> None:
        """Add `nbytes`, which may be negative, to the size of this buffer and to the live memory."""
        self.nbytes += nbytes
        MEMORY.live = live = MEMORY.live + nbytes
        if live > MEMORY.peak:
            MEMORY.peak = live

    def release(self) -> None:
        """Drop the array, whose memory was donated to a run and now counts as results of that run."""
        MEMORY.live -= self.nbytes
        self.nbytes = 0
        self.array = None


class KnownBuffer(Buffer):
    """The memory of a value whose elements are on the `host` as well, so that reading it does not wait for the
    device."""

    __slots__ = ("host",)

    def __init__(self, array: Any, nbytes: int, origin: Origin | None, host: np.ndarray[Any, Any]) -> None:
        super().__init__(array, nbytes, origin)
        self.host = host


class ConstantBuffer(KnownBuffer):
    """The memory of a constant. Many values share it, so it is pinned forever."""

    __slots__ = ()
    constant = True

    def __init__(self, array: Any, nbytes: int, origin: Origin | None, host: np.ndarray[Any, Any]) -> None:
        super().__init__(array, nbytes, origin, host)
        self.pins = 1
