"""The earlier programs of the process, to explain the next one. It holds no tensors, and its memory is bounded."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lazytpu.engine.programs.environment import settings
from lazytpu.engine.recompiles import policy, reasons, wording
from lazytpu.engine.recompiles.explanation import Explanation, Made
from lazytpu.engine.recompiles.host_runs import HostRuns
from lazytpu.engine.recompiles.nearest import Near, TraceSketch, extends, nearest
from lazytpu.engine.recompiles.reasons import Growth, New, Old, ProgramSetting, Reason
from lazytpu.engine.recompiles.whole_runs import WholeRuns
from lazytpu.inspection import debug
from lazytpu.trace.pending import Trace
from lazytpu.trace.trie import Record, State

COMPARED = 256  # newest programs with which a new trace is compared
COMPARED_RECORDS = 500_000  # total records of these: 16 bytes each
LISTED = 2_000  # programs that explain() lists, about 2 kB each
NEAR = 0.5  # minimal share of common leading and trailing ops and lines of two versions of a step
OP_BY_OP = ("strict", "debug")
"Modes in which each op is a program."
DEBUG_COMPILES = (
    "mode debug runs each op by itself, and compiles it once for each dtype and shape, about 0.1 s each: the "
    "first step of a small model compiles about a hundred programs. Later steps compile none"
)
SITES = 100_000  # ops and lines stored per mode


@dataclass(slots=True)
class Family:
    """Programs near to each other, which are versions of one step: the number of recompiles, whether a size has
    changed, and why there is no program for many sizes, if one was refused."""

    recompiles: int = 0
    varied: bool = False
    refused: str = ""


@dataclass(slots=True)
class EarlierProgram:
    """An earlier program: data to find it, and its records while the trie has them."""

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
    """Explains each new program, and counts the recompiles of each step for the budget."""

    def __init__(self, slot_names: Callable[[int], dict[int, str]]):
        self.slot_names = slot_names
        self._known: deque[EarlierProgram] = deque()
        self._records = 0
        self._listed: deque[Made] = deque(maxlen=LISTED)
        self._count = 0
        self._ops: set[Any] = set()
        self._warned = False
        self._sites: dict[str, set[int]] = {}  # mode -> hashes of ops and lines that ran in it
        self._lock = threading.RLock()

    def explanation(
        self,
        graph_breaks: Sequence[Any] = (),
        on_host: Sequence[HostRuns] = (),
        together: Sequence[WholeRuns] = (),
        waits: Sequence[Any] = (),
    ) -> Explanation:
        """Return the programs so far with their reasons, and the given graph breaks, host runs, runs with collectives
        and waits."""
        with self._lock:
            listed = tuple(self._listed)
            return Explanation(listed, self._count - len(listed), graph_breaks, on_host, together, waits)

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
        """A context for the compilation of program `number` for a trace. It determines and reports the reason first,
        while XLA works.

        `told` maps the reason for an exact program to the reason for the program compiled instead. Programs of single
        ops, by which a trace runs meanwhile, have no reason and are not listed.

        Raise RecompileError, or RecompileWarning where warnings are errors, if the budget is exceeded; there are no
        effects then.
        """
        entry = Made(number, name, len(records))
        making = Making(entry)
        if trace.epoch:
            with self._lock:
                self._explain(making, trace, records, live, dead, told)
            debug.because(number, name, entry.text)
        with making:
            yield making

    def shared(self, making: Making, trace: Trace, records: Sequence[Record]) -> None:
        """Store a trace that has the program of an equal trace, for later comparisons. It is not listed."""
        if trace.epoch and making.known is not None:
            setting, sketch = ProgramSetting(trace.mode, tuple(settings())), TraceSketch.of(records)
            with self._lock:
                self._remember(records, sketch, trace.mode)
                self._keep(replace(making.known, sketch=sketch, end=weakref.ref(trace.state), setting=setting))

    def _explain(
        self,
        making: Making,
        trace: Trace,
        records: Sequence[Record],
        live: tuple[int, ...],
        dead: tuple[int, ...],
        told: Callable[[Reason], Reason],
    ) -> None:
        """Determine the reason for a program, and store the program."""
        entry, sketch = making.entry, TraceSketch.of(records)
        setting = ProgramSetting(trace.mode, tuple(settings()))
        new = New(
            records, live, dead, setting, lambda: self.slot_names(trace.epoch), partial(_uploads, trace, records)
        )
        # Determine the reason from the nearest program, or from another mode.
        near = self._nearest(sketch, new, trace.state)
        other_mode = self._other_mode(sketch, new) if near is None or near[0].setting.mode != setting.mode else None
        if near is None or (other_mode is not None and near[1].share < 1):
            reason, family = reasons.first(new, other_mode), Family()
        else:
            earlier, how, old_records = near
            old = Old(
                earlier.made.number,
                old_records,
                earlier.live,
                earlier.donated,
                earlier.setting,
                earlier.growth,
                len(sketch) if how.share == 1.0 else how.after,
                earlier.end() is trace.state,
                earlier.is_first,
                earlier.family.varied,
                earlier.family.refused,
                earlier.made.otherwise if earlier.made.source in ("refused", "failed") else None,
            )
            reason, family = reasons.reason(old, new, self._ops), earlier.family
            entry.nearest = earlier.made.number
        if setting.mode in OP_BY_OP and len(records) == 1:
            reason = reasons.of_single_op(reason, setting.mode)
            self._warn_of_compilations(setting.mode, records[0].line)
        reason = told(reason)
        family.varied |= reason.code == "shape"
        entry.explain(reason, family.recompiles + (entry.nearest is not None and not reason.expected))
        # List the entry, and apply the budget. The recompile counts only if the policy does not raise.
        self._count += 1
        self._listed.append(entry)
        if entry.recompile > family.recompiles:
            with making:
                policy.apply(entry.text, reason.line, entry.recompile)
        family.recompiles = entry.recompile
        # Store the program for later comparisons.
        self._remember(records, sketch, setting.mode)
        end = weakref.ref(trace.state)
        is_first = entry.nearest is None
        making.known = EarlierProgram(
            entry, sketch, end, live, frozenset(dead), setting, reason.growth, family, is_first
        )
        self._keep(making.known)

    def _warn_of_compilations(self, mode: str, line: Any) -> None:
        """Warn once of the many compilations of debug mode, at its first one."""
        if mode == "debug" and not self._warned:
            self._warned = True
            policy.warn(DEBUG_COMPILES, UserWarning, line)

    def _remember(self, records: Sequence[Record], sketch: TraceSketch, mode: str) -> None:
        """Store the ops and lines of a trace."""
        self._ops.update([r.op for r in records])
        sites = self._sites.setdefault(mode, set())
        if len(sites) < SITES:
            sites.update(sketch.sites.tolist())

    def _nearest(
        self, sketch: TraceSketch, new: New, state: State
    ) -> tuple[EarlierProgram, Near, Sequence[Record]] | None:
        """Return the earlier program nearest to a trace, with its records; None if no program is near."""
        same = [earlier for earlier in self._known if earlier.end() is state]
        if same:  # a program of the same trace, for other results
            return min(same, key=lambda k: _distance(k, new)), Near(1.0, len(sketch), 0, len(sketch)), new.records
        best = nearest(sketch, ((k, k.sketch) for k in reversed(self._known) if k.end() is not None))
        if best is None:
            return None
        earlier, near = best
        if near.before + near.after < NEAR * len(sketch) and not extends(sketch, earlier.sketch):
            return None
        end = earlier.end()
        return None if end is None else (earlier, near, end.records())

    def _other_mode(self, sketch: TraceSketch, new: New) -> str | None:
        """Return another mode in which every op of a trace ran, at its line."""
        sites = sketch.sites.tolist()
        return next((m for m, seen in self._sites.items() if m != new.setting.mode and seen.issuperset(sites)), None)

    def _keep(self, known: EarlierProgram) -> None:
        """Store a program for later comparisons, and drop the oldest ones beyond the limits."""
        self._known.append(known)
        self._records += len(known.sketch)
        while len(self._known) > COMPARED or (self._records > COMPARED_RECORDS and len(self._known) > 1):
            self._records -= len(self._known.popleft().sketch)


def _uploads(trace: Trace, records: Sequence[Record]) -> dict[int, str]:
    """Return the lines at which the inputs of a trace were uploaded, by slot."""
    slots = [slot for record in records for slot, _, empty in record.admitted if not empty]
    origins = [(slot, getattr(buffer, "origin", None)) for slot, buffer in zip(slots, trace.buffers, strict=False)]
    return {
        slot: wording.shortened(str(origin.line))
        for slot, origin in origins
        if origin is not None and origin.program is None and origin.line is not None
    }


def _distance(known: EarlierProgram, new: New) -> tuple[int, ...]:
    """Return a sort key for how far a program of the same trace is from compatible: missing results, donated inputs,
    settings, age."""
    return (
        len(set(new.live) - set(known.live)),
        len(known.donated - set(new.dead)),
        known.setting.options != new.setting.options,
        known.setting.mode != new.setting.mode,
        -known.made.number,
    )


@dataclass(slots=True)
class Making:
    """A program during its compilation: a context in which an error marks it as failed."""

    entry: Made
    known: EarlierProgram | None = None
    start: float = field(default_factory=time.perf_counter)

    def chose(self, way: str, seconds: float) -> None:
        """Record the strategy of the step, and the expected seconds until it is ready."""
        self.entry.way, self.entry.estimate = way, 1e3 * seconds

    def made(self, source: str, donated: frozenset[int]) -> None:
        """Record that the program is ready, from `source` ("compiled", "disk", "index", "shared"), and donates
        `donated`. The first call decides the source."""
        if self.entry.source == "pending":
            self.entry.source = source
            self.entry.milliseconds = 1e3 * (time.perf_counter() - self.start)
        if self.known is not None:
            self.known.donated = donated

    def refuse(self, cause: str, source: str = "refused") -> None:
        """Record that this is no program for many sizes, and why."""
        self.entry.refuse(source, cause)
        if self.known is not None:
            self.known.family.refused = cause

    def limit(self, cause: str) -> None:
        """Record that this program for many sizes does not serve some sizes of its bucket, and why."""
        self.entry.limit(f"it does not serve all sizes of its bucket: {cause}")
        if self.known is not None:
            self.known.family.refused = f"program #{self.entry.number} does not serve it: {cause}"

    def __enter__(self) -> Making:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, policy.RecompileError | policy.RecompileWarning):
            self.entry.source = "refused"
        elif error is not None and self.entry.fix in (reasons.SERVES_MANY, reasons.SERVES_SOME):
            self.refuse(f"XLA refused it: {error}", "failed")
        elif error is not None:
            self.entry.source = "failed"
