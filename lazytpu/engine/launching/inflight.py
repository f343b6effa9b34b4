"""Runs that were launched and may not be done: their status, how long the device took, and checks of values (R9)."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from lazytpu.aten.errors import Check
from lazytpu.engine.errors.cuts import failed_check
from lazytpu.engine.errors.lineage import (
    ALL,
    DeviceError,
    Lineage,
    RunOutcome,
    note,
    note_guarded,
    outcomes_of,
    to_raise,
)
from lazytpu.engine.metrics import Metrics
from lazytpu.runtime.errors import RunError
from lazytpu.runtime.xla import client

LIMIT = 16  # runs that the host may be ahead of the device: enough to never starve it, and memory stays bounded
BATCH = 8  # runs that are settled at once: one wait for all of them costs a third of a wait for each


@dataclass(slots=True)
class Timing:
    """How long one program keeps the device busy, in milliseconds. The first three runs are measured and then every
    16th, since the thread that waits for them costs the host some 0.4 ms each."""

    runs: int = 0
    last_ms: float = 0.0


@dataclass(slots=True)
class Run:
    """One launch of a program. Its `status` array is ready when all of it is, and says for each of `checks` whether it
    passed. `outcomes` are those of its results by group, `parents` those of its inputs, if these may have failed, and
    None once its own are set."""

    number: int
    checks: tuple[Check, ...]
    lineage: Lineage
    outcomes: list[RunOutcome]
    parents: Sequence[RunOutcome | None] | None
    status: Any = None


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
        self.errors: list[DeviceError] = []  # those that were not raised yet
        self.launched = 0
        self._numbers = count(1)
        self._noting = threading.Lock()
        self._checking = 0  # the number of the last run that checks values
        self._watched: queue.SimpleQueue[tuple[Launch, Timing, Any] | None] = queue.SimpleQueue()
        self._watcher: threading.Thread | None = None

    def begin(self, timing: Timing) -> Launch | None:
        """Call before a program is launched: says from when its time counts if this run is measured, else None."""
        timing.runs = runs = timing.runs + 1
        if runs > 3 and runs % 16:
            self.metrics.device_ms += timing.last_ms
            return None
        before = self.runs[-1].status if self.runs else None
        return Launch(None if before is None or client.is_ready(before) else before, time.perf_counter())

    def run(self, lineage: Lineage, checks: tuple[Check, ...], inputs: Iterable[Any], alone: bool) -> Run:
        """The run of a program on the buffers `inputs`, for `add`; its outcomes are for the buffers of its results.
        `alone`: it is a single op, so that a check of what its inputs hold may still come.
        """
        self.launched = number = next(self._numbers)  # another thread may launch something, too
        if checks:
            self._checking = number
        first = number
        if self.runs:  # an exception takes 0.4 us
            try:
                first = self.runs[0].number
            except IndexError:  # there are none since just now
                first = number
        doubtful = self._checking >= first or self.errors
        parents = list(outcomes_of(inputs)) if doubtful or alone or lineage.guards else ()
        return Run(number, checks, lineage, [RunOutcome(group) for group in lineage.groups], parents)

    def add(self, run: Run, status: Any, timing: Timing, launch: Launch | None) -> None:
        """A program was launched, and `status` will be there when it is done."""
        run.status = status
        if launch is not None:
            if client.is_ready(status):  # ran while it was launched, as small programs do on the CPU
                self._measured(timing, time.perf_counter() - launch.at)
            else:
                self._watch_on_thread((launch, timing, status))
        self.runs.append(run)

    def keep_up(self) -> None:
        """When the host is more than `LIMIT` runs ahead, wait for the oldest. To be called once the results of a launch
        have their places: an interrupt of the wait then loses nothing. What failed is raised at a read, not in the
        trace that happens to be cut now."""
        if len(self.runs) > LIMIT:
            self._settle(BATCH)

    def settle(self) -> None:
        """Wait for all runs. What failed is not raised here, but noted in the outcomes."""
        while self.runs:
            self._settle(len(self.runs))

    def settle_for(self, buffers: Iterable[Any]) -> None:
        """The same for the runs that these buffers are from, and those before them."""
        wanted = {id(buffer.outcome) for buffer in buffers if buffer.outcome is not None}
        runs = enumerate(list(self.runs), 1) if wanted else ()
        count = max((i for i, run in runs if not wanted.isdisjoint(map(id, run.outcomes))), default=0)
        if count:
            self._settle(count)

    def raise_first(self, errors: Sequence[DeviceError]) -> None:
        """Raise the first of these errors that was not raised yet: the exception of a check of values (IndexError for
        an index out of bounds), or RunError."""
        error = to_raise(errors)
        if error is not None:
            if isinstance(error, RunError):
                to_raise([e for e in self.errors if isinstance(e.error, RunError) and _same(e.error, error)])
            for each in [each for each in list(self.errors) if each.error is None]:
                self.errors.remove(each)  # in place: another thread may note one
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, which would hold it

    def _settle(self, count: int) -> None:
        """Wait for the oldest `count` runs, and for all before the last that guards its inputs. Note what failed."""
        runs = list(self.runs)
        if count < len(runs):
            guarding = [i for i, run in enumerate(runs, 1) if run.lineage.guards]
            runs = runs[: max(count, *guarding[-1:]) if guarding else count]
        with self.metrics.waiting():
            try:
                client.wait([run.status for run in runs])
                suspects = [run for run in runs if run.checks]
            except RunError:
                suspects = runs
            failed = {run.number: _errors_of(run) for run in suspects}
        with self._noting:  # another thread may have waited for the same runs, and noted some
            runs = [run for run in runs if run.parents is not None]
            self._note(runs, {run.number: failed[run.number] for run in runs if run.number in failed})
            for _ in runs:  # only now: what is launched meanwhile asks for the runs that may have failed
                self.runs.popleft()

    def _note(self, runs: Sequence[Run], failed: dict[int, dict[int, DeviceError]]) -> None:
        """Set the outcomes of runs that are done, from what `failed` by the numbers of the runs and of their checks."""
        self.errors.extend(error for checks in failed.values() for error in checks.values())
        if self.errors:
            for run in runs:
                note_guarded(failed.get(run.number, {}), run.parents or (), run.lineage.guards)
            for run in runs:
                note(failed.get(run.number, {}), run.outcomes, run.parents or ())
        for run in runs:
            run.checks, run.parents = (), None

    def idle(self) -> bool:
        """Whether the device is done with all runs."""
        return self.oldest() is None

    def oldest(self) -> Any:
        """The status of the run that the device is at; None when it is done with all."""
        return next((run.status for run in list(self.runs) if not client.is_ready(run.status)), None)

    def close(self, end: float) -> bool:
        """At the end of the process: wait for the device until `end` (time.monotonic()). Returns whether it is done
        and the thread that waits for it has stopped."""
        while not self.idle():
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        if self._watcher is None:
            return True
        self._watched.put(None)
        self._watcher.join(min(threading.TIMEOUT_MAX, max(0.0, end - time.monotonic())))
        return not self._watcher.is_alive()

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


def _same(one: RunError, other: RunError) -> bool:
    """Whether both have one cause: XLA fails what is computed from a run that failed, with words before its reason."""
    return one.reason.rpartition(": ")[2] == other.reason.rpartition(": ")[2]


def _errors_of(run: Run) -> dict[int, DeviceError]:
    """What failed in a run that is done, by the number of the check."""
    try:
        if not run.checks:
            client.wait([run.status])
            return {}
        passed = client.to_host(run.status, copy=False)
    except RunError as error:
        return {ALL: DeviceError(error.with_traceback(None), run.number)}
    return {i: DeviceError(failed_check(check), run.number) for i, check in enumerate(run.checks) if not passed[i]}
