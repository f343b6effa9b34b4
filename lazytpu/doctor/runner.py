"""Has checks run in a child process, one after the other: a device may have one process at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lazytpu.doctor.check import Check
from lazytpu.doctor.outcome import CRASHED, HUNG, LEFT_OUT, WORKS, Outcome
from lazytpu.doctor.process import Process

CLIENT = "machine.client"
"The check that makes the client, with which every process for a device begins."
ENOUGH = 3
"So many checks of a family that end their process are enough to leave out the rest of it."


class Runner:
    """Runs checks; `device` says afterwards whether there was one to be used, `patience` multiplies all limits."""

    def __init__(self, checks: dict[str, Check], start: Callable[[], Process], patience: float = 1.0) -> None:
        self.device = True
        self._checks = checks
        self._start = start
        self._patience = patience
        self._process: Process | None = None
        self._ready = False  # whether the process has a client
        self._ended: Counter[str] = Counter()

    def run(self, wanted: Iterable[Check]) -> Iterator[Outcome]:
        """What came of each check, as it is known."""
        try:
            for check in wanted:
                yield self._outcome(check)
        finally:
            if self._process is not None:
                self._process.leave()

    def stop(self) -> None:
        """End what is running, at once."""
        if self._process is not None:
            self._process.end()

    def _outcome(self, check: Check) -> Outcome:
        if check.device and not self.device:
            return _left_out(check, "there is no client to run it")
        if self._ended[check.family] >= ENOUGH:
            return _left_out(check, f"{ENOUGH} checks of this family have ended their process")
        if check.fresh and self._process is not None:
            self._process.leave()
        process = self._running()
        if check.device and not self._ready and check.key != CLIENT:
            made = self._ask(process, self._checks[CLIENT])
            if made["status"] != WORKS:
                self.device = False
                return _left_out(check, f"a new process got no client: {made['detail']}")
        answer = self._ask(process, check)
        self._ended[check.family] += answer["status"] in (CRASHED, HUNG)
        if check.key == CLIENT:
            self.device = answer["status"] == WORKS
        return Outcome(check.family, check.name, check.proves, **answer)

    def _running(self) -> Process:
        if self._process is None or not self._process.alive:
            self._process = self._start()
            self._ready = False
        return self._process

    def _ask(self, process: Process, check: Check) -> dict[str, Any]:
        answer = process.ask(check.key, check.limit * self._patience)
        self._ready = self._ready or (check.key == CLIENT and answer["status"] == WORKS)
        return answer


def _left_out(check: Check, reason: str) -> Outcome:
    return Outcome(check.family, check.name, check.proves, LEFT_OUT, reason)
