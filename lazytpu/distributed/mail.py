"""Messages between ranks, as the helper process matches their ends. The ranks themselves transfer them over gloo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mail:
    """One end of a message: `rank` sends it, or expects it as its message `number`, from or to the rank `other`; None
    accepts any sender. `what` must be equal at both ends; `shown` has the shapes and the source line."""

    rank: int
    number: int
    other: int | None
    sends: bool
    what: str
    shown: str

    def fits(self, other: Mail) -> bool:
        """Return whether this and `other` are the two ends of one message."""
        return self.sends != other.sends and self.other in (None, other.rank) and other.other in (None, self.rank)

    def __str__(self) -> str:
        return f"rank {self.rank} {'sends' if self.sends else 'expects'} {self.shown}"


class Mails:
    """The ends of messages that wait for their other end, by group and tag. `tell` sends a message to ranks. `left` has
    the lost ranks, and `where` returns the last call of a rank for an error's text."""

    def __init__(
        self,
        tell: Callable[[Sequence[int], Any], None],
        left: Mapping[int, str],
        where: Callable[[int | None], str],
    ):
        self.tell = tell
        self.left = left
        self.where = where
        self.waiting: dict[tuple[str, int], list[Mail]] = {}

    def announce(self, group: str, tag: int, mine: Mail) -> None:
        """Match one end of a message with the other end, or keep it until that arrives."""
        waiting = self.waiting.setdefault((group, tag), [])
        match = next((candidate for candidate in waiting if mine.fits(candidate)), None)
        if match is not None:
            waiting.remove(match)
            text = "" if mine.what == match.what else f"the ranks disagree about a message: {mine}; {match}"
            for receiver, peer in ((mine, match), (match, mine)):
                self.tell([receiver.rank], {"mail": receiver.number, "with": peer.rank, "text": text})
        elif mine.other is not None and mine.other in self.left:
            self._refuse(mine, f"rank {mine.other} {self.left[mine.other]}: {mine}")
        else:
            waiting.append(mine)

    def withdraw(self, rank: int, number: int, seconds: float) -> None:
        """Give up an end whose other end has not come for so long."""
        for waiting in self.waiting.values():
            for end in [end for end in waiting if (end.rank, end.number) == (rank, number)]:
                waiting.remove(end)
                self._refuse(end, f"the other end did not come within {seconds:g} s{self.where(end.other)}")

    def leaves(self, rank: int, how: str) -> None:
        """Give up the messages from and to a lost rank."""
        for waiting in self.waiting.values():
            for end in [end for end in waiting if rank in (end.rank, end.other)]:
                waiting.remove(end)
                self._refuse(end, f"rank {rank} {how}: {end}")

    def _refuse(self, mail: Mail, why: str) -> None:
        self.tell([mail.rank], {"mail": mail.number, "with": -1, "text": why})
