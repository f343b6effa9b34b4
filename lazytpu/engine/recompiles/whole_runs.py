"""The entries of `lazytpu.explain()` for traces with collectives: how often they ran as one program, and why not."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lazytpu.engine.recompiles.wording import at, program_name
from lazytpu.trace.trie import Record

LISTED = 256
"""Number of traces that are remembered, most recently made."""


@dataclass(slots=True)
class WholeRuns:
    """The runs of a trace with collectives, with `options.collectives = "together"`."""

    name: str
    """The user's function from which most of its ops come."""
    begins: str
    """The op and source line at which it begins, such as `mul` at train.py:41."""
    ops: int
    """Number of its ops."""
    whole: int = 0
    """Number of runs as one program."""
    differed: int = 0
    """Number of runs in pieces since the programs of the ranks differed."""
    pieces: int = 0
    """Number of other runs in pieces: before the program was compiled, or when the rank did not ask."""
    refused: str = ""
    """Why there is no program; empty if there is one, or may be one."""
    why: str = ""
    """Why the ranks differed the last time, as far as that is known."""

    def count(self, whole: bool) -> None:
        """Count a run that this rank had a program for."""
        if whole:
            self.whole += 1
        else:
            self.differed += 1

    def __str__(self) -> str:
        runs = self.whole + self.differed + self.pieces
        what = f"collectives together: {self.name}, {self.ops:,} ops from {self.begins}, ran {runs:,} times"
        if self.refused:
            return f"{what}, in pieces because: {self.refused}"
        why = (
            f"; in pieces {self.differed:,} times because: {self.why or 'other ranks had other programs, or none'}"
            if self.differed
            else ""
        )
        return f"{what}, {self.whole:,} of them as one program{why}"


class WholeLog(Sequence[WholeRuns]):
    """All traces with collectives, in bounded memory, most recent last."""

    def __init__(self) -> None:
        self._traces: OrderedDict[int, WholeRuns] = OrderedDict()

    def begins(self, records: Sequence[Record]) -> WholeRuns:
        """Return the entry that counts the runs of a trace."""
        entry = WholeRuns(program_name(records), at(records[0]), len(records))
        self._traces[id(entry)] = entry
        if len(self._traces) > LISTED:
            self._traces.popitem(last=False)
        return entry

    def __getitem__(self, index: int) -> WholeRuns:  # pyright: ignore[reportIncompatibleMethodOverride]
        return list(self._traces.values())[index]

    def __len__(self) -> int:
        return len(self._traces)

    def __iter__(self) -> Iterator[WholeRuns]:
        return iter(list(self._traces.values()))


def described(records: Sequence[Record], live: Sequence[int], dead: Sequence[int], read: int | None) -> str:
    """Return the description of a cut that ranks compare: its number of ops, where it ends, the slots of its results
    that are alive and its inputs that are not."""
    ends = f"behind {at(records[-1])}" if read is None else f"by a read of {_made(records, read)}"
    return json.dumps([len(records), ends, list(live), list(dead)])


def explained(split: Sequence[tuple[int, str, bool]], own: str, records: Sequence[Record]) -> str:
    """Return why the cuts of ranks differ, from what they say of theirs and this rank's `own` description."""
    others = [(rank, about, has_program) for rank, about, has_program in split if about and about != own]
    if not others:
        waiting = [rank for rank, about, has_program in split if about == own and not has_program]
        return f"rank {waiting[0]} has no program of it yet" if waiting else ""
    rank, about, _ = others[0]
    ops, ends, live, dead = json.loads(about)
    own_ops, own_ends, own_live, own_dead = json.loads(own)
    if (ops, ends) != (own_ops, own_ends):
        return f"rank {rank} cut {ends} after {ops:,} ops, and this rank {own_ends} after {own_ops:,}"
    for keeper, slots in ((f"rank {rank}", set(live) - set(own_live)), ("this rank", set(own_live) - set(live))):
        if slots:
            return f"{keeper} keeps {_made(records, min(slots))} alive"
    keeper = f"rank {rank}" if set(own_dead) - set(dead) else "this rank"
    return f"{keeper} keeps a tensor alive that the step overwrites"


def _made(records: Sequence[Record], slot: int) -> str:
    """Return the op and line that computed a slot."""
    for record in records:
        if slot in record.out_slots or any(slot in slots for slots in record.written.values()):
            return f"the result of {at(record)}"
    return "an input"
