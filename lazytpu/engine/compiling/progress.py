"""One line on standard error that says what is being compiled, for how long, and how much is left."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lazytpu.options import options

QUIET = 3.0  # seconds that a program may take before anything is printed
INTERVAL = 1.0  # seconds between two updates of the line


class Compilation(Protocol):
    """A program that is being compiled: `number` tells it from others, `what` describes it, and `meanwhile` is the
    program that runs in its place, None when ops run one by one."""

    number: int
    what: str
    meanwhile: Any

    @property
    def seconds(self) -> float:
        """How long it has been compiled for."""
        ...


class Progress:
    """Shows `jobs()` while there are any. On a terminal this is one line that a thread keeps up to date and removes at
    the end; elsewhere, if LAZYTPU_DEBUG is at least 1, one line for each program."""

    def __init__(self, jobs: Callable[[], Sequence[Compilation]]):
        self.jobs = jobs
        self._said: set[int] = set()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def show(self) -> None:
        """Say what is being compiled, from now until it is done."""
        if not _terminal():
            for job in self.jobs() if options.debug >= 1 else ():
                if job.number not in self._said:
                    self._said.add(job.number)
                    say(f"compiling {job.what}; meanwhile {_running(job)}")
            return
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._update, name="lazytpu progress", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Say nothing more, and leave the terminal as it was."""
        self._stop.set()
        thread = self._thread
        if thread is not None:
            thread.join(2 * INTERVAL)

    def _update(self) -> None:
        from tqdm import tqdm  # here: most processes never show the line

        line = tqdm(bar_format="{desc}", leave=False, file=sys.stderr)
        try:
            while True:
                with self._lock:
                    jobs = self.jobs()
                    if not jobs or self._stop.is_set():
                        self._thread = None
                        return
                line.set_description_str(describe(jobs))
                self._stop.wait(INTERVAL)
        finally:
            line.close()


def describe(jobs: Sequence[Compilation]) -> str:
    """The line for the programs that are not compiled yet, oldest first."""
    left = f", {len(jobs) - 1} more to go" if len(jobs) > 1 else ""
    return f"lazytpu: compiling {jobs[0].what}, {jobs[0].seconds:.0f} s{left}; meanwhile {_running(jobs[0])}"


def _running(job: Compilation) -> str:
    return "ops run one by one" if job.meanwhile is None else "it runs in parts"


def say(message: str) -> None:
    """One line on standard error, if that is a terminal or LAZYTPU_DEBUG is at least 1."""
    if sys.stderr is not None and (options.debug >= 1 or _terminal()):
        print(f"lazytpu: {message}", file=sys.stderr, flush=True)


def _terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
