"""Runs checks in a child process, one at a time, since a device may serve only one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lazytpu.doctor.check import DoctorCheck
from lazytpu.doctor.outcome import CRASHED, HUNG, LEFT_OUT, WORKS, CheckOutcome
from lazytpu.doctor.process import Process

CLIENT = "machine.client"
"The check that creates the client. Every process that uses the device runs it first."
ENOUGH = 3
"""The number of checks of a family that may kill their process before the others of the family are skipped."""


class CheckRunner:
    """Runs checks. Afterwards, `device` says whether a device could be used; `patience` multiplies all limits."""

    def __init__(self, checks: dict[str, DoctorCheck], start: Callable[[], Process], patience: float = 1.0) -> None:
        self.device = True
        self._checks = checks
        self._start = start
        self._patience = patience
        self._process: Process | None = None
        self._ready = False  # whether the process has a client
        self._ended: Counter[str] = Counter()

    def run(self, checks: Iterable[DoctorCheck]) -> Iterator[CheckOutcome]:
        """Yield the outcome of each check, as soon as it ends."""
        try:
            for check in checks:
                yield self._outcome(check)
        finally:
            if self._process is not None:
                self._process.leave()

    def stop(self) -> None:
        """Kill the running process."""
        if self._process is not None:
            self._process.end()

    def _outcome(self, check: DoctorCheck) -> CheckOutcome:
        if check.device and not self.device:
            return _left_out(check, "there is no client to run it")
        if self._ended[check.family] >= ENOUGH:
            return _left_out(check, f"{ENOUGH} checks of this family have killed their process")
        if check.fresh and self._process is not None:
            self._process.leave()
        process = self._running()
        if check.device and not self._ready and check.key != CLIENT:
            client = self._ask(process, self._checks[CLIENT])
            if client["status"] != WORKS:
                self.device = False
                return _left_out(check, f"a new process got no client: {client['detail']}")
        answer = self._ask(process, check)
        self._ended[check.family] += answer["status"] in (CRASHED, HUNG)
        if check.key == CLIENT:
            self.device = answer["status"] == WORKS
        return CheckOutcome(check.family, check.name, check.proves, **answer)

    def _running(self) -> Process:
        if self._process is None or not self._process.alive:
            self._process = self._start()
            self._ready = False
        return self._process

    def _ask(self, process: Process, check: DoctorCheck) -> dict[str, Any]:
        answer = process.ask(check.key, check.limit * self._patience)
        self._ready = self._ready or (check.key == CLIENT and answer["status"] == WORKS)
        return answer


def _left_out(check: DoctorCheck, reason: str) -> CheckOutcome:
    return CheckOutcome(check.family, check.name, check.proves, LEFT_OUT, reason)
