"""The entries of `lazytpu.explain()` for traces that ran on the host by torch's CPU kernels rather than as programs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lazytpu.engine.recompiles.wording import at, program_name
from lazytpu.trace.trie import Record

LISTED = 256
"""Number of places that are remembered, most recently run."""
EACH, BASE = 0.005, 0.03
"XLA's CPU seconds per op of a program, and per program."


@dataclass(slots=True)
class HostRuns:
    """Host runs of traces that begin with the same op at the same line."""

    name: str
    """The user's function from which most ops of the first trace come."""
    begins: str
    """The op and source line at which they begin, such as `mul` at train.py:41."""
    varies: bool
    """Whether they ran there because they vary, rather than because they are short."""
    fewest: int
    """Number of ops of the shortest trace."""
    most: int
    """Number of ops of the longest trace."""
    traces: int = 0
    """Number of different traces."""
    programs: int = 0
    """Number of these that got programs, since they recurred."""
    runs: int = 0
    """Number of host runs."""
    seconds: float = 0.0
    """Host time of these runs, including waits for inputs."""
    saved: float = 0.0
    """Estimated CPU seconds to compile programs for the traces that have none."""

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
    """All host runs, in bounded memory, most recent last."""

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[str, bool], HostRuns] = OrderedDict()

    def begins(self, records: Sequence[Record], *, varies: bool) -> HostRuns:
        """Return the entry that counts the runs of a trace, which runs on the host for the first time."""
        begins, ops = at(records[0]), len(records)
        entry = self._places.pop((begins, varies), None) or HostRuns(program_name(records), begins, varies, ops, ops)
        entry.fewest, entry.most = min(entry.fewest, ops), max(entry.most, ops)
        entry.traces += 1
        entry.saved += BASE + EACH * ops
        self._places[begins, varies] = entry
        if len(self._places) > LISTED:
            self._places.popitem(last=False)
        return entry

    def __getitem__(self, index: int) -> HostRuns:  # pyright: ignore[reportIncompatibleMethodOverride]
        return list(self._places.values())[index]

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[HostRuns]:
        return iter(list(self._places.values()))


def program_made(counted: HostRuns, records: Sequence[Record]) -> None:
    """Note that a trace has got its program."""
    counted.programs += 1
    counted.saved = max(0.0, counted.saved - BASE - EACH * len(records))
