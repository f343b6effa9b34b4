"""The programs made so far, as far as explaining the next one needs them. Keeps no tensors, and bounded memory."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lazytpu.engine.programs.environment import settings
from lazytpu.engine.recompiles import policy, reasons
from lazytpu.engine.recompiles.explanation import Explanation, Made
from lazytpu.engine.recompiles.host_runs import HostRuns
from lazytpu.engine.recompiles.nearest import Near, TraceSketch, nearest
from lazytpu.engine.recompiles.reasons import Growth, New, Old, ProgramSetting, Reason
from lazytpu.inspection import debug
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import Record, State

COMPARED = 256  # programs that a new trace is compared with, the newest
COMPARED_RECORDS = 500_000  # their records together: 16 bytes each
LISTED = 2_000  # programs that explain() lists, some 2 kB each
NEAR = 0.5  # share of a trace's ops and lines that a program begins and ends with, to be a version of the same step
SITES = 100_000  # ops and lines that are remembered for each mode


@dataclass(slots=True)
class Family:
    """Programs near to one another: the versions of one step, and how often it was compiled anew."""

    recompiles: int = 0


@dataclass(slots=True)
class EarlierProgram:
    """An earlier program: enough to find it, and its records as long as the trie has them."""

    made: Made
    sketch: TraceSketch
    end: weakref.ref[State]
    live: tuple[int, ...]
    donated: frozenset[int]
    setting: ProgramSetting
    growth: Growth | None
    family: Family
    is_first: bool


def _as_found(reason: Reason) -> Reason:
    return reason


class Recompiles:
    """Explains each program that is made, and counts those of one step for the budget."""

    def __init__(self, slot_names: Callable[[int], dict[int, str]]):
        self.slot_names = slot_names
        self._known: deque[EarlierProgram] = deque()
        self._records = 0
        self._listed: deque[Made] = deque(maxlen=LISTED)
        self._count = 0
        self._ops: set[Any] = set()
        self._sites: dict[str, set[int]] = {}  # mode -> hashes of ops and lines that ran in it
        self._lock = threading.RLock()

    def explanation(self, graph_breaks: Sequence[Any] = (), on_host: Sequence[HostRuns] = ()) -> Explanation:
        """The programs so far with their reasons, and the graph breaks and runs on the host given."""
        with self._lock:
            return Explanation(tuple(self._listed), self._count - len(self._listed), graph_breaks, on_host)

    @contextmanager
    def making(
        self,
        number: int,
        name: str,
        trace: Trace,
        records: Sequence[Record],
        live: tuple[int, ...],
        dead: tuple[int, ...],
        told: Callable[[Reason], Reason] = _as_found,
    ) -> Iterator[Making]:
        """Around making program `number` for a trace: finds the reason first, so that it is told while XLA is at work.

        `told` makes of the reason for an exact program that of what is made instead of it. The programs of single ops
        that a trace is run by meanwhile have no reason of their own, and are not listed.
        Raises RecompileError, or RecompileWarning where warnings are errors, when the budget is passed; nothing has
        happened then.
        """
        entry = Made(number, name, len(records))
        making = Making(entry)
        if trace.epoch:
            with self._lock:
                self._explain(making, trace, records, live, dead, told)
            debug.because(number, name, entry.text)
        with making:
            yield making

    def _explain(
        self,
        making: Making,
        trace: Trace,
        records: Sequence[Record],
        live: tuple[int, ...],
        dead: tuple[int, ...],
        told: Callable[[Reason], Reason],
    ) -> None:
        entry, sketch = making.entry, TraceSketch.of(records)
        setting = ProgramSetting(trace.mode, tuple(settings()))
        new = New(records, live, dead, setting, lambda: self.slot_names(trace.epoch))
        near = self._nearest(sketch, new, trace.state)
        other_mode = self._other_mode(sketch, new) if near is None or near[0].setting.mode != setting.mode else None
        if near is None or (other_mode is not None and near[1].share < 1):
            reason, family = reasons.first(new, other_mode), Family()
        else:
            known, how, old_records = near
            old = Old(
                known.made.number,
                old_records,
                known.live,
                known.donated,
                known.setting,
                known.growth,
                len(sketch) if how.share == 1.0 else how.after,
                known.end() is trace.state,
                known.is_first,
                known.made.source in ("refused", "failed"),
            )
            reason, family = reasons.reason(old, new, self._ops), known.family
            entry.nearest = known.made.number
        reason = told(reason)
        entry.explain(reason, family.recompiles + (entry.nearest is not None and not reason.expected))
        self._count += 1
        self._listed.append(entry)
        if entry.recompile > family.recompiles:
            with making:
                policy.apply(entry.text, reason.line, entry.recompile)
        family.recompiles = entry.recompile
        self._remember(records, sketch, setting.mode)
        end = weakref.ref(trace.state)
        is_first = entry.nearest is None
        making.known = EarlierProgram(
            entry, sketch, end, live, frozenset(dead), setting, reason.growth, family, is_first
        )
        self._keep(making.known)

    def _remember(self, records: Sequence[Record], sketch: TraceSketch, mode: str) -> None:
        self._ops.update([r.op for r in records])
        sites = self._sites.setdefault(mode, set())
        if len(sites) < SITES:
            sites.update(sketch.sites.tolist())

    def _nearest(
        self, sketch: TraceSketch, new: New, state: State
    ) -> tuple[EarlierProgram, Near, Sequence[Record]] | None:
        """The program nearest to a trace, with its records; None when there is none near."""
        same = [known for known in self._known if known.end() is state]
        if same:  # the trace itself had a program, for other results
            return min(same, key=lambda k: _distance(k, new)), Near(1.0, len(sketch), 0, len(sketch)), new.records
        best = nearest(sketch, ((k, k.sketch) for k in reversed(self._known) if k.end() is not None))
        if best is None or best[1].before + best[1].after < NEAR * len(sketch):
            return None
        known, near = best
        end = known.end()
        return None if end is None else (known, near, end.records())

    def _other_mode(self, sketch: TraceSketch, new: New) -> str | None:
        """Another mode in which every op of a trace ran, at its line."""
        sites = sketch.sites.tolist()
        return next((m for m, seen in self._sites.items() if m != new.setting.mode and seen.issuperset(sites)), None)

    def _keep(self, known: EarlierProgram) -> None:
        self._known.append(known)
        self._records += len(known.sketch)
        while len(self._known) > COMPARED or (self._records > COMPARED_RECORDS and len(self._known) > 1):
            self._records -= len(self._known.popleft().sketch)


def _distance(known: EarlierProgram, new: New) -> tuple[int, ...]:
    """How far a program of the same trace is from serving: results it lacks, memory it takes, settings, age."""
    return (
        len(set(new.live) - set(known.live)),
        len(known.donated - set(new.dead)),
        known.setting.options != new.setting.options,
        known.setting.mode != new.setting.mode,
        -known.made.number,
    )


@dataclass(slots=True)
class Making:
    """A program while it is being made: a context in which an error means that it was not."""

    entry: Made
    known: EarlierProgram | None = None
    start: float = field(default_factory=time.perf_counter)

    def chose(self, way: str, seconds: float) -> None:
        """The step goes on this way, and should be able to after so many seconds."""
        self.entry.way, self.entry.estimate = way, 1e3 * seconds

    def made(self, source: str, donated: frozenset[int]) -> None:
        """It is there: from `source` ("compiled", "disk", "index", "shared"), and takes the memory of `donated`. The
        first that says so knows."""
        if self.entry.source == "pending":
            self.entry.source = source
            self.entry.milliseconds = 1e3 * (time.perf_counter() - self.start)
        if self.known is not None:
            self.known.donated = donated

    def __enter__(self) -> Making:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, policy.RecompileError | policy.RecompileWarning):
            self.entry.source = "refused"
        elif error is not None:
            self.entry.source = "failed"
