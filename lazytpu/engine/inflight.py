"""Runs that were launched and may not be done: their status, how long the device took, and bounds checks (R9)."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from lazytpu.aten.importer import Check
from lazytpu.engine.metrics import Metrics
from lazytpu.runtime import client

LIMIT = 16  # runs the host may be ahead of the device: enough to never starve it, and memory stays bounded


@dataclass(slots=True)
class Run:
    """One launched program: its status array (which is ready when all of it is) and the checks the status refers to."""

    status: Any
    checks: tuple[Check, ...]
    launched: float


class Inflight:
    """The runs whose status nobody has looked at yet, oldest first."""

    def __init__(self, metrics: Metrics):
        self.metrics = metrics
        self.runs: deque[Run] = deque()
        self.failure: IndexError | None = None
        self._watched: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._watcher: threading.Thread | None = None

    def add(self, status: Any, checks: tuple[Check, ...]) -> None:
        """A program was launched; when the host is `LIMIT` runs ahead, wait for the oldest."""
        run = Run(status, checks, time.perf_counter())
        self.runs.append(run)
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="lazytpu device timer", daemon=True)
            self._watcher.start()
        self._watched.put(run)
        if len(self.runs) > LIMIT:
            self._settle(self.runs.popleft())

    def settle(self) -> None:
        """Wait for all runs.

        Raises IndexError for the first bounds check that failed since the last call, and RunError when a run failed.
        """
        start = time.perf_counter()
        try:
            while self.runs:
                self._settle(self.runs.popleft())
        finally:
            self.metrics.wait_ms += 1e3 * (time.perf_counter() - start)
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def _settle(self, run: Run) -> None:
        status = int(client.to_host(run.status, copy=False))
        if status < len(run.checks) and self.failure is None:
            check = run.checks[status]
            self.failure = IndexError(f"{check.message} ({check.op} at {check.line})")

    def _watch(self) -> None:
        """Measures how long the device is busy, on a thread of its own: a run ends when its status is there."""
        end = 0.0
        while True:
            run = self._watched.get()
            try:
                client.wait([run.status])
            except RuntimeError:
                continue  # reported at the host's next read, with the run's own error
            done = time.perf_counter()
            self.metrics.device_ms += 1e3 * (done - max(end, run.launched))
            end = done
