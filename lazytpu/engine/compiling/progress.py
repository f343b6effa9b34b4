"""One line on standard error that says what is being compiled and why, how long it takes, and what runs until then."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from textwrap import shorten
from typing import Any, Protocol

from lazytpu.inspection.terminal import UNREAD, is_terminal, say
from lazytpu.options import options

QUIET = 3.0  # seconds that a program may take before anything is printed
INTERVAL = 1.0  # seconds between two updates of the line
REASON = 120  # letters of the reason, at the end: a terminal that is not as wide cuts them off
WIDE = 1000  # columns that cut nothing off
ROOM = 30  # columns for the reason that a terminal has to leave; a narrower one gets a shorter line


class Compilation(Protocol):
    """A program that is being compiled: `number` tells it from others, `what` describes it, `reason` says why it is
    made. It should be there `expected` seconds after it was begun. `meanwhile` is the program that runs in its place,
    one of its parts or a quick one by the `way` that was chosen; without one, ops run one by one, if a step is `late`,
    and else the script waits."""

    number: int
    what: str
    reason: str
    expected: float
    meanwhile: Any
    way: str
    late: bool

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
        if not is_terminal():
            for job in self.jobs() if options.debug >= 1 else ():
                if job.number not in self._said:
                    self._said.add(job.number)
                    say(_sentence(job))
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

        form: dict[str, Any] = {"bar_format": "{desc}", "leave": False, "dynamic_ncols": True, "delay": INTERVAL}
        with suppress(*UNREAD), tqdm(file=sys.stderr, **form) as line:
            line.delay = 0  # it was for the constructor, which writes as refresh() does
            while jobs := self._left():
                line.set_description_str(describe(jobs, line.ncols or WIDE), refresh=False)
                with tqdm.get_lock():  # where refresh() takes it, it stays taken if nothing can be written
                    line.refresh(nolock=True)
                self._stop.wait(INTERVAL)
            return
        self._thread = None  # it could not be written

    def _left(self) -> Sequence[Compilation]:
        """What there is to show. When that is nothing, the thread ends, and `show` begins another."""
        with self._lock:
            jobs = () if self._stop.is_set() else self.jobs()
            if not jobs:
                self._thread = None
            return jobs


def describe(jobs: Sequence[Compilation], width: int = WIDE) -> str:
    """The line for the programs that are being compiled, the oldest of those first that the script waits for. A
    terminal of `width` columns shows as much of its beginning."""
    first = min(jobs, key=lambda job: job.late)
    left = f", {len(jobs) - 1} more to go" if len(jobs) > 1 else ""
    line = f"lazytpu: {_sentence(first, left)}"
    if line.find("(because: ") + ROOM <= width:
        return line
    time = f"{first.seconds:.0f} s" if _overdue(first) else f"{first.seconds:.0f} of about {first.expected:.0f} s"
    return f"lazytpu: compiling {first.what.partition(' (')[0]}, {time}: {first.reason}"


def _sentence(job: Compilation, left: str = "") -> str:
    time = f"{job.seconds:.0f} s so far"
    if not _overdue(job):
        time = f"about {job.expected:.0f} s, {time}"
    reason = f" (because: {shorten(job.reason, REASON, placeholder=' …')})" if job.reason else ""
    return f"compiling {job.what}, {time}{left}; {_running(job)}{reason}"


def _overdue(job: Compilation) -> bool:
    """Whether the estimate of its time says nothing, or nothing more."""
    return job.meanwhile is not None or not job.seconds < job.expected < inf


def _running(job: Compilation) -> str:
    if job.meanwhile is not None:
        return f"meanwhile it runs {'with less optimisation' if job.way == 'quick' else 'in parts'}"
    return "meanwhile ops run one by one" if job.late else "the script waits"
