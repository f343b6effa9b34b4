"""The result of `lazytpu.explain()`: the compiled programs and the reasons for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lazytpu.engine.recompiles.host_runs import HostRuns
from lazytpu.engine.recompiles.reasons import SERVES_MANY, SERVES_SOME, Reason, sentence
from lazytpu.engine.recompiles.whole_runs import WholeRuns
from lazytpu.engine.recompiles.wording import place


@dataclass(slots=True)
class Made:
    """A program and the reason for it.

    `source` is the origin of its machine code: "compiled" by XLA in this process; "disk", the cache of executables;
    "index", the cache without passes and lowering; "shared", an earlier program with the same code; "pending" while it
    is compiled; "failed". Only "compiled" cost a compilation.
    """

    number: int
    """The number of the program in this process, from 0: its index in `lazytpu.graphs()`."""
    name: str
    """The user's function from which most of its ops come."""
    records: int
    """Number of recorded ops."""
    code: str = ""
    """The reason code, one of `lazytpu.engine.recompiles.reasons.CODES`."""
    text: str = ""
    """The reason in words: the difference, the nearest program, and the fix."""
    hint: str = ""
    """The cause behind it, such as last-batch or growing; empty if none is recognised."""
    fix: str = ""
    """The recommended fix."""
    line: str = ""
    """The source line of the difference, such as model.py:41; empty if it is unknown."""
    entered: str = ""
    """The source line at which the tensor that differs was uploaded, such as train.py:12; empty if it was not."""
    diff: tuple[str, ...] = ()
    """The records around the difference: "- " precedes the nearest program's, "+ " this one's."""
    nearest: int | None = None
    """The number of the nearest earlier program; None for the first of its kind."""
    recompile: int = 0
    """The number of recompiles of this step so far, as counted for `options.recompile_budget`."""
    source: str = "pending"
    notes: tuple[str, ...] = ()
    """Decisions of passes by estimates, such as loops that were rolled."""
    milliseconds: float = 0.0
    """Wall time until it was ready: import, passes, lowering and XLA."""
    way: str = "whole"
    """The strategy of the step: wait for the "whole" program; until that is ready, run it compiled with less
    optimisation ("quick"), or in "parts", or run "op by op"."""
    estimate: float = 0.0
    """The milliseconds that XLA was expected to take for this strategy; 0 if there was no choice."""
    otherwise: str = ""
    """The fix without a program for many sizes, if this is the reason of one."""

    def explain(self, reason: Reason, recompile: int) -> None:
        """Set the reason."""
        self.code, self.hint, self.fix, self.diff = reason.code, reason.hint, reason.fix, reason.diff
        self.text = sentence(reason, self.nearest)
        self.line, self.entered = place(reason.line), reason.entered
        self.recompile = recompile
        self.otherwise = reason.otherwise

    def refuse(self, source: str, cause: str) -> None:
        """Note that there is no program for many sizes, and why: this size, and others, get programs of their own.
        `source` is "refused" or "failed"."""
        self.source = source
        self.notes = (f"no program for many sizes: {cause}",)
        text = self.text.removesuffix(f"; fix: {self.fix}")
        self.otherwise = self.otherwise or self.fix
        self.fix = f"{self.otherwise}; {cause}"
        self.text = f"{text}; fix: {self.fix}"

    def limit(self, *notes: str) -> None:
        """Say that a program for many sizes does not serve all of its bucket; `notes` say why. A fix remains."""
        self.notes += tuple([note for note in notes if note not in self.notes])
        if self.fix == SERVES_MANY:
            text = self.text.removesuffix(f"; fix: {self.fix}")
            self.fix = SERVES_SOME
            self.text = f"{text}; fix: {self.fix}"

    def __str__(self) -> str:
        how = {
            "compiled": "compiled",
            "failed": "failed to compile",
            "refused": "was not compiled",
            "pending": "being compiled",
        }
        did = how.get(self.source, f"taken from {_FROM.get(self.source, self.source)}")
        took = f", {self.milliseconds:,.0f} ms" if self.milliseconds else ""
        if took and self.source == "compiled" and self.estimate >= 1e3:
            took += f", {self.estimate:,.0f} of XLA expected"
        if self.way != "whole":
            did += f", ran {_WAYS[self.way]} first,"
        return f"#{self.number} {self.name} ({self.records:,} ops{took}) {did} because: {self.reason()}"

    def reason(self) -> str:
        """Return the reason, the diff, and decisions of passes by estimates."""
        return "\n".join([self.text, *(f"      {line}" for line in (*self.diff, *self.notes))])


_WAYS = {"quick": "with less optimisation", "parts": "in parts", "op by op": "op by op"}
_FROM = {
    "disk": "the disk cache, and made",
    "index": "the trace index, and made",
    "shared": "an earlier program with the same code, and made",
}


class Explanation(Sequence[Made]):
    """All compiled programs, oldest first; `print(lazytpu.explain())` shows them with their reasons."""

    def __init__(
        self,
        programs: Sequence[Made],
        forgotten: int,
        graph_breaks: Sequence[Any] = (),
        on_host: Sequence[HostRuns] = (),
        together: Sequence[WholeRuns] = (),
        waits: Sequence[Any] = (),
    ):
        self.programs = tuple(programs)
        "The programs, oldest first."
        self.counts = dict(Counter(made.code for made in self.programs))
        "Number of programs by reason code."
        self.compiles = sum(made.source == "compiled" for made in self.programs)
        "Number of programs that XLA compiled; all others came from a cache."
        self.forgotten = forgotten
        "Number of older programs that are no longer listed."
        self.graph_breaks = tuple(graph_breaks)
        "Places where code under torch.compile is split (`lazytpu.dynamo.breaks.GraphBreak`)."
        self.on_host = tuple(on_host)
        "Small traces that ran on the host rather than as programs (`options.on_host`)."
        self.together = tuple(together)
        'Traces with collectives, as one program or in pieces (`options.collectives = "together"`).'

        self.waits = waits
        "Reads and synchronizations at which the host waited for the device (`lazytpu.waits()`)."

    def __getitem__(self, index: int) -> Made:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.programs[index]

    def __len__(self) -> int:
        return len(self.programs)

    def __iter__(self) -> Iterator[Made]:
        return iter(self.programs)

    def __str__(self) -> str:
        further = [*map(str, self.together), *map(str, self.on_host), *map(str, self.graph_breaks)]
        further += [str(self.waits)] if self.waits else []
        if not self.programs:
            return "\n".join(["no program was made yet", *further])
        counts = ", ".join(f"{code} {count}" for code, count in sorted(self.counts.items(), key=lambda c: -c[1]))
        head = f"{len(self.programs):,} programs, {self.compiles:,} compiled by XLA: {counts}"
        if self.forgotten:
            head += f" ({self.forgotten:,} older ones are no longer listed)"
        return "\n".join([head, *map(str, self.programs), *further])

    __repr__ = __str__
