"""Runs that were launched and may not be done: their status, how long the device took, and bounds checks (R9)."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from lazytpu.aten.failures import Check
from lazytpu.engine.failures import failed_check
from lazytpu.engine.metrics import Metrics
from lazytpu.runtime import client
from lazytpu.runtime.errors import RunError

LIMIT = 16  # runs the host may be ahead of the device: enough to never starve it, and memory stays bounded
BATCH = 8  # of these are settled at once: one wait for all of them costs a third of a wait for each


@dataclass(slots=True)
class Timing:
    """How long one program keeps the device busy, in milliseconds: measured on some of its runs, since the thread that
    waits for them costs the host some 0.4 ms each."""

    runs: int = 0
    last_ms: float = 0.0

    def due(self) -> bool:
        """Whether the run that begins now is measured: the first three and then every 16th."""
        self.runs += 1
        return self.runs <= 3 or self.runs % 16 == 0


@dataclass(slots=True)
class Run:
    """One launched program: its status array (which is ready when all of it is) and the checks the status refers to."""

    status: Any
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """When a measured run was launched, and the status of the run that the device was still busy with, if any."""

    before: Any
    at: float


class Inflight:
    """The runs whose status nobody has looked at yet, oldest first."""

    def __init__(self, metrics: Metrics):
        self.metrics = metrics
        self.runs: deque[Run] = deque()
        self.failure: Exception | None = None
        self._watched: queue.SimpleQueue[tuple[Launch, Timing, Any] | None] = queue.SimpleQueue()
        self._watcher: threading.Thread | None = None

    def begin(self, timing: Timing) -> Launch | None:
        """Call before a program is launched: says from when its time counts if this run is measured, else None."""
        if not timing.due():
            self.metrics.device_ms += timing.last_ms
            return None
        before = self.runs[-1].status if self.runs else None
        return Launch(None if before is None or client.is_ready(before) else before, time.perf_counter())

    def add(self, status: Any, checks: tuple[Check, ...], timing: Timing, launch: Launch | None) -> None:
        """A program was launched; when the host is `LIMIT` runs ahead, wait for the oldest. Raises nothing: what failed
        is told at the next read, and not to the trace that happens to be cut now."""
        run = Run(status, checks)
        if launch is not None:
            if client.is_ready(status):  # ran while it was launched, as small programs do on the CPU
                self._measured(timing, time.perf_counter() - launch.at)
            else:
                self._watch_on_thread((launch, timing, status))
        self.runs.append(run)
        if len(self.runs) > LIMIT:
            self._settle(BATCH)

    def settle(self) -> None:
        """Wait for all runs.

        Raises the exception of the first check of values that failed since the last call (IndexError for an index out
        of bounds), and RunError when a run failed.
        """
        while self.runs:
            self._settle(len(self.runs))
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def _settle(self, count: int) -> None:
        """Wait for the oldest runs, and keep the first failure among them."""
        runs = self._oldest(count)
        try:
            with self.metrics.waiting():
                try:
                    client.wait([run.status for run in runs])
                    suspects = [run for run in runs if run.checks]
                except RunError:
                    suspects = runs
                for run in suspects:
                    if self.failure is None:
                        self.failure = _failure_of(run)
        except BaseException:  # an interrupt: nobody has looked at them yet
            self.runs.extendleft(reversed(runs))
            raise

    def idle(self) -> bool:
        """Whether the device is done with all runs."""
        return all(client.is_ready(run.status) for run in list(self.runs))

    def close(self, end: float) -> bool:
        """At the end of the process: wait until `end` (time.monotonic()) for the device; whether it is done, and the
        thread that waits for it has stopped."""
        while not self.idle():
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        if self._watcher is None:
            return True
        self._watched.put(None)
        self._watcher.join(min(threading.TIMEOUT_MAX, max(0.0, end - time.monotonic())))
        return not self._watcher.is_alive()

    def _oldest(self, count: int) -> list[Run]:
        runs: list[Run] = []
        try:
            while len(runs) < count:
                runs.append(self.runs.popleft())
        except IndexError:  # there are no more: another thread may settle them, too
            return runs
        return runs

    def _measured(self, timing: Timing, seconds: float) -> None:
        timing.last_ms = 1e3 * seconds
        self.metrics.device_ms += timing.last_ms

    def _watch_on_thread(self, watched: tuple[Launch, Timing, Any]) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="lazytpu device timer", daemon=True)
            self._watcher.start()
        self._watched.put(watched)

    def _watch(self) -> None:
        """On a thread of its own: a run begins when the one before it is done, and ends when its status is there."""
        while (watched := self._watched.get()) is not None:
            launch, timing, status = watched
            start = launch.at
            try:
                if launch.before is not None:
                    client.wait([launch.before])
                    start = max(time.perf_counter(), start)
                client.wait([status])
            except RuntimeError:
                continue  # reported at the host's next read, with the run's own error
            self._measured(timing, time.perf_counter() - start)


def _failure_of(run: Run) -> Exception | None:
    """Why a run failed, once it is done; None when it did not."""
    try:
        if not run.checks:
            client.wait([run.status])
            return None
        status = int(client.to_host(run.status, copy=False))
    except RunError as error:
        return error.with_traceback(None)
    return failed_check(run.checks[status]) if status < len(run.checks) else None
