"""The posts of ranks, and the sequences that all ranks of a group write, as the helper process counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

CRASHED, ENDED = "was killed or crashed", "has ended"  # how a rank leaves
Call = tuple[str, str]
"""The signature of a collective, and the source line of its call."""


def in_ranges(ranks: Sequence[int]) -> str:
    """Return ranks as text, as arithmetic sequences `first:count:step`. The ranks of a mesh's axis are one sequence,
    however many they are."""
    sequences: list[str] = []
    at = 0
    while at < len(ranks):
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        end = at + 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        sequences.append(f"{ranks[at]}:{end - at}:{step}")
        at = end
    return ",".join(sequences)


@lru_cache(maxsize=1 << 13)
def from_ranges(text: str) -> tuple[int, ...]:
    """Return the ranks of a text that `in_ranges` wrote."""
    ranks: list[int] = []
    for sequence in text.split(",") if text else ():
        first, count, step = map(int, sequence.split(":"))
        ranks.extend(first + step * i for i in range(count))
    return tuple(ranks)


@dataclass(slots=True)
class Post:
    """The collectives that a rank is about to launch, in one message.

    - `members`: the ranks, as text, of the groups that are new to the rank.
    - `launches`: whether anything is launched; if not, they are not ordered relative to other groups.
    - `groups`: the group of each call. `calls`: by group, the signatures and the source lines of its calls.
    - `mark`: the digest of the program that the rank can launch for all of the calls; empty if it has none. `about`:
      what it says about its cut, for ranks that have a program.
    """

    members: dict[str, str]
    launches: bool
    groups: list[str]
    calls: dict[str, tuple[list[str], list[str]]]
    mark: str = ""
    about: str = ""

    @classmethod
    def parsed(
        cls,
        calls: Sequence[Sequence[str]],
        members: dict[str, str],
        launches: bool = True,
        mark: str = "",
        about: str = "",
    ) -> Post:
        """Return the post of a message, whose calls are (group, signature, source line)."""
        by_group: dict[str, tuple[list[str], list[str]]] = {}
        for group, signature, line in calls:
            signatures, lines = by_group.setdefault(group, ([], []))
            signatures.append(signature)
            lines.append(line)
        return cls(members, launches, [group for group, *_ in calls], by_group, mark, about)


class Ledger:
    """A sequence that all `members` write, each at its own speed.

    Entry i is complete when all members have written it. `start` is the first entry that was not removed; `texts` has
    the entries from there on, as the first writer of each wrote them, and `lines` their source lines. `at` is the
    number of entries that each member has written, and `low` the smallest of these. `others` has, by entry, the members
    that wrote another text, and `own_lines` the members with another line.
    """

    __slots__ = ("_arrived", "at", "lines", "low", "others", "own_lines", "start", "texts")

    def __init__(self, members: Sequence[int]):
        self.start = self.low = 0
        self.texts: list[str] = []
        self.lines: list[str] = []
        self.at = dict.fromkeys(members, 0)
        self._arrived = Counter({0: len(self.at)})  # number of members by their `at`
        self.others: dict[int, dict[int, str]] = {}
        self.own_lines: dict[int, dict[int, str]] = {}

    def is_level(self, ranks: Sequence[int]) -> bool:
        """Return whether members have written equally many entries."""
        return len(set(map(self.at.get, ranks))) == 1

    def write(self, ranks: Sequence[int], texts: list[str], lines: list[str]) -> None:
        """Let members that have written equally many entries write their next ones."""
        begin = self.at[ranks[0]]
        first, end = begin - self.start, begin + len(texts)
        if (shared := len(self.texts) - first) < len(texts):
            self.texts.extend(texts[shared:])
            self.lines.extend(lines[shared:])
        if self.texts[first : end - self.start] != texts:
            self._note(self.others, ranks, begin, self.texts, texts)
        if self.lines[first : end - self.start] != lines:
            self._note(self.own_lines, ranks, begin, self.lines, lines)
        for rank in ranks:
            self.at[rank] = end
        arrived, count = self._arrived, len(ranks)
        arrived[end] += count
        arrived[begin] -= count
        if not arrived[begin]:
            del arrived[begin]
            if begin == self.low:
                self.low = min(arrived)

    def _note(
        self,
        differing: dict[int, dict[int, str]],
        ranks: Sequence[int],
        begin: int,
        known: list[str],
        written: list[str],
    ) -> None:
        for i, text in enumerate(written, begin):
            if text != known[i - self.start]:
                differing.setdefault(i, {}).update(dict.fromkeys(ranks, text))

    def is_complete(self) -> bool:
        """Return whether all members have written the first entry."""
        return self.low > self.start

    def is_equal(self, count: int) -> bool:
        """Return whether all members have written the first `count` entries, with equal texts."""
        end = self.start + count
        return self.low >= end and not any(i in self.others for i in range(self.start, end))

    def has_written(self, rank: int) -> bool:
        """Return whether a member has written the first entry."""
        return self.at[rank] > self.start

    def first(self, rank: int) -> Call:
        """Return the first entry as a member wrote it."""
        text = self.others.get(self.start, {}).get(rank, self.texts[0])
        return text, self.own_lines.get(self.start, {}).get(rank, self.lines[0])

    def written(self, rank: int) -> list[str]:
        """Return the entries of a member that were not removed."""
        texts = self.texts[: self.at[rank] - self.start]
        return [self.others.get(i, {}).get(rank, text) for i, text in enumerate(texts, self.start)]

    def remove_first(self) -> None:
        """Remove the first entry, which is complete."""
        self.others.pop(self.start, None)
        self.own_lines.pop(self.start, None)
        del self.texts[0], self.lines[0]
        self.start += 1


@dataclass(slots=True)
class Window:
    """The collectives of a cut, in the groups `groups`, which some ranks can launch as one program. `marks` has the
    ranks that have posted it, by mark. `abouts` has a rank for each description of a cut, with whether it has a mark,
    up to ABOUTS."""

    groups: list[str]
    marks: dict[str, list[int]] = field(default_factory=dict[str, "list[int]"])
    abouts: dict[tuple[str, bool], int] = field(default_factory=dict[tuple[str, bool], int])


@dataclass(slots=True)
class Order:
    """The launches of the groups with equal members: `launches` has the groups, in the order of their collectives.
    `windows` has marked cuts, by the number of their first launch. `number` counts the orders of the job."""

    number: int
    members: tuple[int, ...]
    launches: Ledger
    windows: dict[int, Window] = field(default_factory=dict[int, Window])


@dataclass(slots=True)
class Group:
    """The state of a group. `calls` has its collectives; those before its first entry are agreed: all members have
    posted them with equal signatures. `last` has the last call that each member posted."""

    ranges: str
    members: tuple[int, ...]
    order: Order
    launches: bool
    calls: Ledger
    reported: int = 0  # the agreed collectives of which the members were notified
    whole: list[int] = field(default_factory=list[int])  # the first collectives of windows that are whole, of these
    split: list[Any] = field(default_factory=list[Any])  # the first collectives of other windows, and what ranks say
    last: dict[int, Call] = field(default_factory=dict[int, Call])
    broken: str | None = None
    answers: dict[int, str] | None = None  # the members' states, while these are being asked for
    is_reminding: bool = False

    @property
    def agreed(self) -> int:
        """The number of agreed collectives."""
        return self.calls.start

    def is_level(self, ranks: Sequence[int]) -> bool:
        """Return whether members have posted equally many collectives."""
        return self.calls.is_level(ranks) and self.order.launches.is_level(ranks)

    def missing(self) -> list[int]:
        """Return the members that have posted nothing, if another member waits."""
        return [rank for rank in self.members if not self.calls.has_written(rank)] if self.calls.texts else []
