"""Counters of what the engine did, in one place."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass, fields
from typing import Any

_COMPILED = threading.Lock()  # several threads compile at a time, and none of the counters below may be lost


@dataclass
class Metrics:
    """Totals since the start or the last `reset`. Times are wall milliseconds.

    `steps` cuts that ran a program; `hits` of them found one compiled already, or ran `on_host`
    because they are short, or small and vary; `misses` did not, and `stepwise` of
    these ran op by op, `clustered` in parts, and `quick` by a program with less optimisation, while it was compiled in
    the background; `compiles` programs that XLA compiled, quickly and then in full counting once;
    `records` what was recorded: ops, and graphs of `torch.compile`, each of which counts once; `trace_ms` the host's
    time between cuts (the script's Python and recording), without waiting; `launch_ms` in cuts that hit; `miss_ms` in
    cuts that did not (import, passes, lowering, compiling); `wait_ms` the host waited for the device; `device_ms` the
    device was busy; `cpu_fallbacks` ops that ran on the CPU (`lazytpu.options.cpu_fallback`); `constant_reads` host
    reads that constants decide, answered without the device.
    """

    steps: int = 0
    hits: int = 0
    misses: int = 0
    stepwise: int = 0
    clustered: int = 0
    quick: int = 0
    on_host: int = 0
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
        """Start counting anew."""
        for counter in fields(self):
            setattr(self, counter.name, counter.default)

    def ran(self, hit: bool, milliseconds: float) -> None:
        """A cut ran a program, and took so long; a `hit` when it was there already."""
        self.steps += 1
        if hit:
            self.hits += 1
            self.launch_ms += milliseconds
        else:
            self.misses += 1
            self.miss_ms += milliseconds

    def answered(self) -> None:
        """A host read was answered without the device."""
        self.constant_reads += 1

    def compiled(self, milliseconds: float, again: bool) -> None:
        """XLA compiled a program, on this thread, in so much wall time; `again` with more optimisation than before."""
        with _COMPILED:
            self.compiles += not again
            self.compile_ms += milliseconds

    def waiting(self) -> Waiting:
        """The host waits for the device inside."""
        return Waiting(self)

    def as_dict(self, live_bytes: int, peak_bytes: int, gathers: int) -> dict[str, Any]:
        """The counters with the device's memory: what `lazytpu.metrics()` returns."""
        return {**asdict(self), "live_bytes": live_bytes, "peak_bytes": peak_bytes, "view_gathers": gathers}


class Waiting:
    """A wait for the device, which is counted. (A generator would take a microsecond more, of the twenty of a read.)"""

    __slots__ = ("metrics", "start")

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *raised: object) -> None:
        self.metrics.wait_ms += 1e3 * (time.perf_counter() - self.start)
