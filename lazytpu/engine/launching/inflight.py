"""Runs that were launched and may not be done: their status, device time, and checks of values (R9)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from lazytpu import timeline
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
from lazytpu.engine.launching.watcher import Point, Watched, Watcher
from lazytpu.engine.metrics import Metrics
from lazytpu.runtime.buffers.buffer import MEMORY
from lazytpu.runtime.errors import RunError
from lazytpu.runtime.xla import client
from lazytpu.timeline import TIMELINE

LIMIT = 16  # runs that the host may be ahead of the device: never starves the device, and bounds memory
AHEAD = f"the host was more than {LIMIT} programs ahead of the device, which limits the speed: no read waits here"
BATCH = 8  # runs resolved by one wait, which costs a third of separate waits


@dataclass(slots=True)
class Timing:
    """The device time of one program, in milliseconds.

    The first three runs are measured, then every 16th, since the thread that waits for a measured run costs the host
    some 0.4 ms.
    """

    runs: int = 0
    last_ms: float = 0.0


@dataclass(slots=True)
class Run:
    """One launch of a program.

    `status` is an array that is ready when the run is done, and says for each of `checks` whether it passed. `outcomes`
    are the outcomes of its results by group. `parents` are the outcomes of inputs that may have failed, and None once
    its own are set.
    """

    number: int
    checks: tuple[Check, ...]
    lineage: Lineage
    outcomes: list[RunOutcome]
    parents: Sequence[RunOutcome | None] | None
    status: Any = None


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch time of a measured run, and the status of the run that the device was still executing, if any."""

    before: Any
    at: float


class Inflight:
    """The runs whose status was not examined yet, oldest first.

    `waiting` returns a context for a wait that the script does not ask for, given the reason.
    """

    def __init__(self, metrics: Metrics):
        self.metrics = metrics
        self.runs: deque[Run] = deque()
        self.errors: list[DeviceError] = []  # errors that were not raised yet
        self.launched = 0
        self.waiting: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self._numbers = count(1)
        self._noting = threading.Lock()
        self._checking = 0  # the number of the last run that checks values
        self._watcher = Watcher()

    def begin(self, timing: Timing) -> Launch | None:
        """Prepare the launch of a program. Return the start of its measurement, or None if this run is not measured."""
        timing.runs = runs = timing.runs + 1
        if runs > 3 and runs % 16 and TIMELINE.collecting is None:
            self.metrics.device_ms += timing.last_ms
            return None
        before = self.runs[-1].status if self.runs else None
        return Launch(None if before is None or client.is_ready(before) else before, time.perf_counter())

    def run(self, lineage: Lineage, checks: tuple[Check, ...], inputs: Iterable[Any], alone: bool) -> Run:
        """Return a run on the buffers `inputs`, to be passed to `add` after the launch. Its outcomes belong to the
        buffers of its results.

        With `alone` it is a single op, so a check of its inputs' values may still be pending.
        """
        self.launched = number = next(self._numbers)  # another thread may launch concurrently
        if checks:
            self._checking = number
        first = number
        if self.runs:  # an exception takes 0.4 us
            try:
                first = self.runs[0].number
            except IndexError:  # another thread has just removed the last run
                first = number
        doubtful = self._checking >= first or self.errors
        parents = list(outcomes_of(inputs)) if doubtful or alone or lineage.guards else ()
        return Run(number, checks, lineage, [RunOutcome(group) for group in lineage.groups], parents)

    def add(self, run: Run, status: Any, timing: Timing, launch: Launch | None, name: str) -> None:
        """Add a launched run of the program `name`, whose `status` will be ready when it is done."""
        run.status = status
        if launch is not None:
            measured = partial(self._measured, timing, name, launch.at)
            if TIMELINE.collecting is not None:
                TIMELINE.holds(launch.at, MEMORY.live)
            if client.is_ready(status):  # finished during the launch, as small programs do on the CPU
                measured(launch.at, time.perf_counter())
            else:
                before = () if launch.before is None else (launch.before,)
                self._watcher.watch(Watched(before, launch.at, (status,), measured))
        self.runs.append(run)

    def keep_up(self) -> None:
        """Wait for the oldest runs if the host is more than `LIMIT` runs ahead.

        Call this after the results of a launch are assigned, so that an interrupt of the wait loses nothing. Failures
        are raised at a read, not in the trace that happens to be cut now.
        """
        if len(self.runs) > LIMIT:
            with self.waiting(AHEAD):
                self._settle(BATCH)

    def settle(self) -> None:
        """Wait for all runs. Failures are not raised, but recorded in the outcomes."""
        while self.runs:
            self._settle(len(self.runs))

    def settle_for(self, buffers: Iterable[Any], because: str) -> None:
        """Wait for the runs that computed these buffers, and all earlier ones. Failures are recorded in the outcomes.
        `because` is the reason that `lazytpu.waits()` shows."""
        wanted = {id(buffer.outcome) for buffer in buffers if buffer.outcome is not None}
        runs = enumerate(list(self.runs), 1) if wanted else ()
        count = max((i for i, run in runs if not wanted.isdisjoint(map(id, run.outcomes))), default=0)
        if count:
            with self.waiting(because):
                self._settle(count)

    def raise_first(self, errors: Sequence[DeviceError]) -> None:
        """Raise the first of these errors that was not raised yet.

        This is the exception of a value check (IndexError for an index out of bounds), or RunError.
        """
        error = to_raise(errors)
        if error is not None:
            if isinstance(error, RunError):
                to_raise([e for e in self.errors if isinstance(e.error, RunError) and _same(e.error, error)])
            for raised in [raised for raised in list(self.errors) if raised.error is None]:
                self.errors.remove(raised)  # in place: another thread may append an error
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, which would hold it

    def _settle(self, count: int) -> None:
        """Wait for the oldest `count` runs, and for all runs up to the last that guards its inputs. Record failures."""
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
        with self._noting:  # another thread may have resolved some of the same runs
            runs = [run for run in runs if run.parents is not None]
            self._note(runs, {run.number: failed[run.number] for run in runs if run.number in failed})
            for _ in runs:  # only now: concurrent launches inspect the runs that may have failed
                self.runs.popleft()

    def _note(self, runs: Sequence[Run], failed: dict[int, dict[int, DeviceError]]) -> None:
        """Set the outcomes of finished runs. `failed` has their errors by run number and check number."""
        self.errors.extend(error for checks in failed.values() for error in checks.values())
        if self.errors:
            for run in runs:
                note_guarded(failed.get(run.number, {}), run.parents or (), run.lineage.guards)
            for run in runs:
                note(failed.get(run.number, {}), run.outcomes, run.parents or ())
        for run in runs:
            run.checks, run.parents = (), None

    def point(self) -> Point:
        """Return the point in the device's queue behind all launched runs. This does not wait."""
        point = Point()
        pending = [run.status for run in list(self.runs) if not client.is_ready(run.status)]
        if pending:
            self._watcher.watch(Watched((), 0.0, pending, lambda _, end: point.reach(end)))
        else:
            point.reach(time.perf_counter())
        return point

    def wait_for(self, point: Point) -> float:
        """Wait until the device has come to a point, and return the time at which it did."""
        with self.metrics.waiting():
            return point.wait()

    def idle(self) -> bool:
        """Return whether the device has finished all runs."""
        return self.oldest() is None

    def oldest(self) -> Any:
        """Return the status of the oldest run that is not done, or None."""
        return next((run.status for run in list(self.runs) if not client.is_ready(run.status)), None)

    def close(self, end: float) -> bool:
        """Wait for the device until `end` (time.monotonic()), at the end of the process. Return whether it is done and
        the timing thread has stopped."""
        while not self.idle():
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        return self._watcher.close(end)

    def _measured(self, timing: Timing, name: str, launched: float, start: float, end: float) -> None:
        """Record the measured times of a run of the program `name`."""
        timing.last_ms = 1e3 * (end - start)
        self.metrics.device_ms += timing.last_ms
        TIMELINE.ran(timeline.Run(name, launched, start, end))

    def settle_times(self) -> None:
        """Wait until the times of all measured runs are known."""
        self._watcher.drain()


def _same(one: RunError, other: RunError) -> bool:
    """Return whether two errors have one cause. XLA fails runs that depend on a failed run with a prefix before its
    reason."""
    return one.reason.rpartition(": ")[2] == other.reason.rpartition(": ")[2]


def _errors_of(run: Run) -> dict[int, DeviceError]:
    """Return the errors of a finished run by check number."""
    try:
        if not run.checks:
            client.wait([run.status])
            return {}
        passed = client.to_host(run.status, copy=False)
    except RunError as error:
        return {ALL: DeviceError(error.with_traceback(None), run.number)}
    return {i: DeviceError(failed_check(check), run.number) for i, check in enumerate(run.checks) if not passed[i]}
