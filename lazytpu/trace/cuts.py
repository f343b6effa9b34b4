"""The causes of cuts. A cut has a cause, which is one of these constants, and a place in the user's program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from lazytpu.trace.trie import State

READ: Final = "host read"
STEP: Final = "optimizer.step()"
MARK: Final = "mark_step()"
SYNC: Final = "synchronize()"
EVENT: Final = "event recorded"
BEGIN: Final = "step begins"
AGAIN: Final = "model called again"
BRANCH: Final = "another way to go on"
BLOCK: Final = "repeated block"
LIMIT: Final = "size limit"
IDLE: Final = "device idle"
THREAD: Final = "another thread reads"
MODE: Final = "mode changed"
PEER: Final = "other ranks"

REMEMBERED: Final = 64  # number of cuts kept per recorder


@dataclass(frozen=True, slots=True)
class Cut:
    """One cut: its `cause` and its `place` in the user's program, or None if none of the program's frames was on the
    stack.

    `ran` counts the ops that ran, and `left` the ops that stayed pending. It `splits` a training step if a read ends a
    trace with ops of a backward pass, or ops that autograd keeps for one.
    """

    cause: str
    place: Any
    ran: int
    left: int
    splits: bool = False

    @classmethod
    def of(cls, cause: str, place: Any, state: State, left: State | None = None) -> Cut:
        """Return the cut of a trace at `state`, whose records at `left` stay pending."""
        traits = (state if left is None else left).traits, state.traits
        splits = cause is READ and any(t.in_graph or t.in_backward for t in traits)
        return cls(cause, place, state.depth, 0 if left is None else left.depth, splits)

    def __str__(self) -> str:
        where = "" if self.place is None else f" at {self.place}, {self.place.text()!r}"
        pending = f", {self.left} left pending" if self.left else ""
        return f"{self.cause}{where}: {self.ran} {'op' if self.ran == 1 else 'ops'} ran{pending}"


class Cuts(tuple[Cut, ...]):
    """Cuts, oldest first. As text: one per line, with repeated lines folded into one with a count."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(line for row in _folded(list(map(str, self))) for line in _lines(row)) or "no cuts"

    __repr__ = __str__


Row: TypeAlias = "str | tuple[int, tuple[Row, ...]]"  # a line, or (count, rows) for a repetition


def _folded(rows: list[Row]) -> list[Row]:
    """Fold repeated rows, shortest repetitions first: a loop over layers is folded within a loop over steps."""
    for length in range(1, len(rows) // 2 + 1):
        folded: list[Row] = []
        at = 0
        while at < len(rows):
            block, count = rows[at : at + length], 1
            while rows[at + count * length : at + (count + 1) * length] == block:
                count += 1
            folded.append((count, tuple(block)) if count > 1 else rows[at])
            at += count * length if count > 1 else 1
        if len(folded) < len(rows):
            return _folded(folded)
    return rows


def _lines(row: Row) -> list[str]:
    if isinstance(row, str):
        return [row]
    count, rows = row
    if len(rows) == 1:
        return [f"{line} ({count} times)" for line in _lines(rows[0])]
    return [f"{count} times:", *(f"  {line}" for inner in rows for line in _lines(inner))]
