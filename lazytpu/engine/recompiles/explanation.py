"""What `lazytpu.explain()` returns: the programs that were made, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lazytpu.engine.recompiles.host_runs import HostRuns
from lazytpu.engine.recompiles.reasons import Reason, sentence
from lazytpu.engine.recompiles.wording import place


@dataclass(slots=True)
class Made:
    """One program that was made, and the reason.

    `source` says where its machine code came from: "compiled" by XLA now; "disk", the cache of executables; "index",
    the cache without passes and lowering; "shared", an earlier program whose code is the same; "pending" while it is
    being made; "failed". Only "compiled" cost a compilation.
    """

    number: int
    "Which program of the process, counted from 0: its place in `lazytpu.graphs()`."
    name: str
    "The user's function that most of its ops come from."
    records: int
    "Recorded ops."
    code: str = ""
    "The reason: one of `lazytpu.engine.recompiles.reasons.CODES`."
    text: str = ""
    "The reason in words: what differs, the nearest program, and the fix."
    hint: str = ""
    "The cause that is recognised behind it, such as last-batch or growing; empty for none."
    fix: str = ""
    "What to do about it."
    line: str = ""
    "The source line of the difference, such as model.py:41; empty when it is not known."
    diff: tuple[str, ...] = ()
    'The records around the difference: "- " before those of the nearest program, "+ " before those of this one.'
    nearest: int | None = None
    "The number of the nearest earlier program; None for the first of its kind."
    recompile: int = 0
    "How many times this step was compiled anew up to here, as counted for `options.recompile_budget`."
    source: str = "pending"
    notes: tuple[str, ...] = ()
    "What passes decided by estimates, such as loops that were rolled."
    milliseconds: float = 0.0
    "Wall time until it was there: import, passes, lowering and XLA."
    way: str = "whole"
    """What the step went on with: the "whole" program, which it waited for; the same compiled with less optimisation,
    "quick", or in "parts", until the whole is there; its ops, "op by op"."""
    estimate: float = 0.0
    "Milliseconds that XLA was expected to take until then; 0 where nothing was to be chosen."

    def explain(self, reason: Reason, recompile: int) -> None:
        """Fill in the reason."""
        self.code, self.hint, self.fix, self.diff = reason.code, reason.hint, reason.fix, reason.diff
        self.text = sentence(reason, self.nearest)
        self.line = place(reason.line)
        self.recompile = recompile

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
        """Why it was made, the diff, and what passes decided by estimates."""
        return "\n".join([self.text, *(f"      {line}" for line in (*self.diff, *self.notes))])


_WAYS = {"quick": "with less optimisation", "parts": "in parts", "op by op": "op by op"}
_FROM = {
    "disk": "the disk cache, and made",
    "index": "the trace index, and made",
    "shared": "an earlier program with the same code, and made",
}


class Explanation(Sequence[Made]):
    """All programs that were made, oldest first; `print(lazytpu.explain())` shows them with their reasons."""

    def __init__(
        self,
        programs: Sequence[Made],
        forgotten: int,
        graph_breaks: Sequence[Any] = (),
        on_host: Sequence[HostRuns] = (),
    ):
        self.programs = tuple(programs)
        "What was made, oldest first."
        self.counts = dict(Counter(made.code for made in self.programs))
        "How many programs each reason code made."
        self.compiles = sum(made.source == "compiled" for made in self.programs)
        "How many of them XLA compiled; the others came from a cache."
        self.forgotten = forgotten
        "Older programs that are no longer listed."
        self.graph_breaks = tuple(graph_breaks)
        "Where code under torch.compile is not one record, or one program (`lazytpu.dynamo.breaks.GraphBreak`)."
        self.on_host = tuple(on_host)
        "Small traces that ran on the host in place of a program (`options.on_host`)."

    def __getitem__(self, index: int) -> Made:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.programs[index]

    def __len__(self) -> int:
        return len(self.programs)

    def __iter__(self) -> Iterator[Made]:
        return iter(self.programs)

    def __str__(self) -> str:
        others = [*map(str, self.on_host), *map(str, self.graph_breaks)]
        if not self.programs:
            return "\n".join(["no program was made yet", *others])
        counts = ", ".join(f"{code} {count}" for code, count in sorted(self.counts.items(), key=lambda c: -c[1]))
        head = f"{len(self.programs):,} programs, {self.compiles:,} compiled by XLA: {counts}"
        if self.forgotten:
            head += f" ({self.forgotten:,} older ones are no longer listed)"
        return "\n".join([head, *map(str, self.programs), *others])

    __repr__ = __str__
