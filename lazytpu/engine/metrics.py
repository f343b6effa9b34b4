"""Counters of the engine's work."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass, fields
from typing import Any

_COMPILED = threading.Lock()  # several threads compile concurrently, and no count may be lost


@dataclass
class Metrics:
    """Totals since the start or the last `reset`. Times are wall milliseconds.

    - `steps`: cuts that ran a program.
    - `hits`: steps whose program existed, or that ran `on_host` because they are short, or small and varying.
    - `misses`: other steps. Of these, `stepwise` ran op by op, `clustered` in parts, and `quick` by a program with less
      optimisation, while the program was compiled in the background.
    - `compiles`: programs that XLA compiled; one compiled quickly and then in full counts once.
    - `windows`: cuts with collectives that ran as one program, since all ranks had it (`options.collectives`), and
      `split_windows`: those that this rank had a program for, but ran in pieces as another rank did.
    - `records`: recorded ops, and graphs of `torch.compile`, each of which counts once.
    - `trace_ms`: host time between cuts (the script's Python and recording), without waiting.
    - `launch_ms`: time in cuts that hit. `miss_ms`: time in other cuts (import, passes, lowering, compiling).
    - `wait_ms`: time that the host waited for the device. `device_ms`: time that the device was busy.
    - `cpu_fallbacks`: ops that ran on the CPU (`lazytpu.options.cpu_fallback`).
    - `constant_reads`: host reads of constants, answered without the device.
    """

    steps: int = 0
    hits: int = 0
    misses: int = 0
    stepwise: int = 0
    clustered: int = 0
    quick: int = 0
    on_host: int = 0
    windows: int = 0
    split_windows: int = 0
    compiles: int = 0
    records: int = 0
    trace_ms: float = 0.0
    launch_ms: float = 0.0
    miss_ms: float = 0.0
    compile_ms: float = 0.0
    wait_ms: float = 0.0
    device_ms: float = 0.0
    cpu_fallbacks: int = 0
    constant_reads: int = 0

    def reset(self) -> None:
        """Set all counters to their defaults."""
        for counter in fields(self):
            setattr(self, counter.name, counter.default)

    def ran(self, hit: bool, milliseconds: float) -> None:
        """Count a cut that ran a program in this time; a `hit` if the program existed."""
        self.steps += 1
        if hit:
            self.hits += 1
            self.launch_ms += milliseconds
        else:
            self.misses += 1
            self.miss_ms += milliseconds

    def answered(self) -> None:
        """Count a host read that was answered without the device."""
        self.constant_reads += 1

    def compiled(self, milliseconds: float, again: bool) -> None:
        """Count a compilation on this thread and its wall time; `again` if the program was compiled quickly before."""
        with _COMPILED:
            self.compiles += not again
            self.compile_ms += milliseconds

    def waiting(self) -> Waiting:
        """Return a context that counts its time as waiting for the device."""
        return Waiting(self)

    def as_dict(self, live_bytes: int, peak_bytes: int, gathers: int) -> dict[str, Any]:
        """Return the counters and the device's memory, for `lazytpu.metrics()`."""
        return {**asdict(self), "live_bytes": live_bytes, "peak_bytes": peak_bytes, "view_gathers": gathers}


class Waiting:
    """A context that counts its time as waiting for the device; a context within another one counts nothing. (A
    generator would take a microsecond more, of the twenty of a read.)"""

    __slots__ = ("inner", "metrics", "start")

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def __enter__(self) -> None:
        self.inner = _waited.is_waiting
        _waited.is_waiting = True
        self.start = time.perf_counter()

    def __exit__(self, *raised: object) -> None:
        if not self.inner:
            seconds = time.perf_counter() - self.start
            _waited.is_waiting = False
            _waited.seconds += seconds
            self.metrics.wait_ms += 1e3 * seconds


class _Waited(threading.local):
    """The time that a thread has waited for the device, and whether it waits now."""

    seconds = 0.0
    is_waiting = False


_waited = _Waited()


def waited() -> float:
    """Return the seconds that the calling thread has waited for the device."""
    return _waited.seconds
