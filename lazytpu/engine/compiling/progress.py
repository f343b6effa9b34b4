"""A line on standard error about running compilations: the program, reason and time, and the substitute that runs."""

from __future__ import annotations

import os
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
REASON = 120  # characters of the reason, at the end, where a narrow terminal truncates them
WIDE = 1000  # columns that truncate nothing
UNKNOWN, ROWS = 80, 24  # columns and rows of a terminal that does not know its size
ROOM = 30  # columns for the reason that a terminal has to leave; a narrower one gets a shorter line


class Compilation(Protocol):
    """A program being compiled.

    `number` identifies it, `what` describes it, and `reason` says why it is compiled. It should be ready `expected`
    seconds after its start. `meanwhile` is the substitute that runs, compiled by the strategy `way`. Without one, ops
    run one by one if a step is `late`; otherwise the script waits.
    """

    number: int
    what: str
    reason: str
    expected: float
    meanwhile: Any
    way: str
    late: bool

    @property
    def seconds(self) -> float:
        """The seconds since its start."""
        ...


class Progress:
    """Shows `jobs()` while there are any.

    On a terminal this is one line, updated by a thread and removed at the end. Elsewhere, if LAZYTPU_DEBUG is at least
    1, it is one line for each program.
    """

    def __init__(self, jobs: Callable[[], Sequence[Compilation]]):
        self.jobs = jobs
        self._said: set[int] = set()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def show(self) -> None:
        """Show the running compilations until they are done."""
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
        """Stop, and restore the terminal."""
        self._stop.set()
        thread = self._thread
        if thread is not None:
            thread.join(2 * INTERVAL)

    def _update(self) -> None:
        """Update the line until there is nothing to show."""
        from tqdm import tqdm  # here: most processes never show the line

        form: dict[str, Any] = {"bar_format": "{desc}", "leave": False, "delay": INTERVAL}
        form |= {"ncols": _columns(), "nrows": ROWS}
        with suppress(*UNREAD), tqdm(file=sys.stderr, **form) as line:
            line.delay = 0  # the delay was for the constructor, which would print the line
            while jobs := self._left():
                line.ncols = _columns()
                line.set_description_str(describe(jobs, line.ncols), refresh=False)
                with tqdm.get_lock():  # refresh() would keep the lock if writing fails
                    line.refresh(nolock=True)
                self._stop.wait(INTERVAL)
            return
        self._thread = None  # writing failed

    def _left(self) -> Sequence[Compilation]:
        """Return the jobs to show. If there are none, the thread ends, and `show` starts another."""
        with self._lock:
            jobs = () if self._stop.is_set() else self.jobs()
            if not jobs:
                self._thread = None
            return jobs


def _columns() -> int:
    """Return the width of the terminal; 80 if that is unknown, as of a pseudo-terminal whose creator set none."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or UNKNOWN
    except UNREAD:
        return UNKNOWN


def describe(jobs: Sequence[Compilation], width: int = WIDE) -> str:
    """Return the line for the running compilations, in `width` columns: first the oldest that the script waits for."""
    first = min(jobs, key=lambda job: job.late)
    others_text = f", {len(jobs) - 1} more to go" if len(jobs) > 1 else ""
    line = f"lazytpu: {_sentence(first, others_text)}"
    if line.find("(because: ") + ROOM <= width:
        return line
    time = f"{first.seconds:.0f} s" if _overdue(first) else f"{first.seconds:.0f} of about {first.expected:.0f} s"
    return f"lazytpu: compiling {first.what.partition(' (')[0]}, {time}: {first.reason}"


def _sentence(job: Compilation, left: str = "") -> str:
    """Return the description of a compilation."""
    time = f"{job.seconds:.0f} s so far"
    if not _overdue(job):
        time = f"about {job.expected:.0f} s, {time}"
    reason = f" (because: {shorten(job.reason, REASON, placeholder=' …')})" if job.reason else ""
    return f"compiling {job.what}, {time}{left}; {_running(job)}{reason}"


def _overdue(job: Compilation) -> bool:
    """Return whether the estimate of its time is unknown, exceeded, or irrelevant."""
    return job.meanwhile is not None or not job.seconds < job.expected < inf


def _running(job: Compilation) -> str:
    """Return a description of what runs until the program is ready."""
    if job.meanwhile is not None:
        return f"meanwhile it runs {'with less optimisation' if job.way == 'quick' else 'in parts'}"
    return "meanwhile ops run one by one" if job.late else "the script waits"
