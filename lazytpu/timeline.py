"""The runs, compilations and memory of the device while a profiler collects them.

The engine notes them, and the frontend gives them to the profilers of torch. Times are `time.perf_counter()`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a program on the device: its name, the time of its launch (None if that is unknown), its start, and its
    end."""

    name: str
    launched: float | None
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Compilation:
    """A compilation of a program by XLA: its name, start, and end."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Span:
    """An interval on the device: its name, start and end, and XLA's statistics `about` it."""

    name: str
    start: float
    end: float
    about: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Traced:
    """The runs of programs on the device by its own clock, and the ops in them."""

    runs: list[Span]
    ops: list[Span]


@dataclass(slots=True)
class Collected:
    """Everything that a profiler has collected since it `began`. `memory` has the bytes of live device memory by time,
    after each launch. `runs` are those that the host saw; `traced` is what the device itself noted, if it can."""

    began: float = field(default_factory=time.perf_counter)
    runs: list[Run] = field(default_factory=list[Run])
    compilations: list[Compilation] = field(default_factory=list[Compilation])
    memory: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    traced: Traced | None = None

    def device_runs(self) -> list[Run]:
        """Return the runs, in the order of their starts.

        Where the device has traced them, these are its own. The device runs programs in the order of their launches, so
        if it traced as many runs of a name as there were launches, the first belongs to the first, and so on. Others,
        such as the parts of a chain, have no launch of their own.
        """
        if self.traced is None:
            return sorted(self.runs, key=lambda run: run.start)
        launches: dict[str, list[float | None]] = {}
        for run in sorted(self.runs, key=lambda run: run.launched or 0.0):
            launches.setdefault(run.name, []).append(run.launched)
        counts = Counter(span.name for span in self.traced.runs)
        spans = sorted(self.traced.runs, key=lambda span: span.start)
        known = {name: iter(times) for name, times in launches.items() if len(times) == counts[name]}
        return [Run(span.name, next(known.get(span.name, iter(())), None), span.start, span.end) for span in spans]


class Timeline:
    """Notes what happens while it is `collecting`; otherwise each launch reads this attribute, and nothing else.

    `host_range` returns a context that the profiler shows as a range of the host's thread.
    """

    def __init__(self) -> None:
        self.collecting: Collected | None = None
        self.host_range: Callable[[str], AbstractContextManager[Any]] = nullcontext

    def ran(self, run: Run) -> None:
        """Note a run, once its end is known, unless it was launched before the profiler began."""
        if (collecting := self.collecting) is not None and (run.launched or 0.0) >= collecting.began:
            collecting.runs.append(run)

    def compiled(self, compilation: Compilation) -> None:
        """Note a compilation."""
        if (collecting := self.collecting) is not None:
            collecting.compilations.append(compilation)

    def holds(self, time: float, live_bytes: int) -> None:
        """Note the live memory of the device."""
        if (collecting := self.collecting) is not None:
            collecting.memory.append((time, live_bytes))


TIMELINE = Timeline()
LAUNCH, WAIT, COMPILE = "lazytpu::launch ", "lazytpu::wait ", "lazytpu::compile "
"""Beginnings of the names of ranges; the name of the program, or the expression that waits, follows."""
