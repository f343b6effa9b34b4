"""What `lazytpu.explain()` says of traces that ran on the host, by torch's kernels for the CPU, and not as programs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lazytpu.engine.recompiles.wording import at, program_name
from lazytpu.trace.trie import Record

LISTED = 256
"Places that are remembered, those that ran last."
EACH, BASE = 0.005, 0.03
"CPU seconds that XLA needs for an op of a program, and for any program."


@dataclass(slots=True)
class HostRuns:
    """Traces that begin with the same op at the same line, and ran on the host."""

    name: str
    "The user's function that most of the ops of the first one come from."
    begins: str
    "The op and the line of the script that they begin with, such as `mul` at train.py:41."
    varies: bool
    "They ran there because they vary, and not because they are short."
    fewest: int
    "Ops of the shortest trace."
    most: int
    "Ops of the longest one."
    traces: int = 0
    "How many different ones there were."
    programs: int = 0
    "How many of these got programs, as they came again and again."
    runs: int = 0
    "How often one ran on the host."
    seconds: float = 0.0
    "What these runs took of the host's time, waiting for their inputs included."
    saved: float = 0.0
    "What programs for the traces that have none would have taken to compile, in CPU seconds, by an estimate."

    def __str__(self) -> str:
        ops = f"{self.fewest:,}" if self.fewest == self.most else f"{self.fewest:,} to {self.most:,}"
        what = f"{self.traces:,} traces" if self.traces > 1 else "1 trace"
        why = "they vary, and others of their kind have programs" if self.varies else "short, with the same bits"
        later = f"; {self.programs:,} came so often that they got programs" if self.programs else ""
        runs = f"{self.runs:,} times" if self.runs > 1 else "once"
        return (
            f"on the host: {self.name}, {what} of {ops} ops from {self.begins}, ran {runs}, {self.seconds:.2f} s, by "
            f"torch's kernels for the CPU because: {why}; saved about {self.saved:.1f} s of compiling{later}; "
            f"on_host = 0 compiles them"
        )


class HostLog(Sequence[HostRuns]):
    """All that ran on the host, in bounded memory; the latest last."""

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[str, bool], HostRuns] = OrderedDict()

    def begins(self, records: Sequence[Record], *, varies: bool) -> HostRuns:
        """A trace will run on the host for the first time: what its runs are counted in."""
        begins, ops = at(records[0]), len(records)
        known = self._places.pop((begins, varies), None) or HostRuns(program_name(records), begins, varies, ops, ops)
        known.fewest, known.most = min(known.fewest, ops), max(known.most, ops)
        known.traces += 1
        known.saved += BASE + EACH * ops
        self._places[begins, varies] = known
        if len(self._places) > LISTED:
            self._places.popitem(last=False)
        return known

    def __getitem__(self, index: int) -> HostRuns:  # pyright: ignore[reportIncompatibleMethodOverride]
        return list(self._places.values())[index]

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[HostRuns]:
        return iter(list(self._places.values()))


def program_made(counted: HostRuns, records: Sequence[Record]) -> None:
    """A trace gets its program after all."""
    counted.programs += 1
    counted.saved = max(0.0, counted.saved - BASE - EACH * len(records))
