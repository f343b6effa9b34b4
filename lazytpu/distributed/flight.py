"""The flight recorder: the last collectives of each group, and how far each of them came on this rank."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

KEPT = 64  # collectives of each group
STATES = ("recorded", "posted", "agreed", "launched", "done")
BEFORE_LAUNCH = STATES[:3]


@dataclass(slots=True, eq=False)
class Entry:
    """One collective of a group, called at a `line`, whose text is made where it is shown. Its state is one of STATES,
    or "failed". Of the STATES that it has reached `times` has when, by `time.monotonic()`; `recorded` is the first of
    them by `time.time()`. `status` is an array that is there when it is done, and None until it is launched; `failed`
    says that it ended with an error. `order` counts the collectives of its group as they are recorded."""

    group: str
    line: Any
    signature: str = ""
    members: tuple[int, ...] = ()
    number: int | None = None
    recorded: float = field(default_factory=time.time)
    times: list[float] = field(default_factory=lambda: [time.monotonic()])
    status: Any = None
    failed: bool = False
    order: int = 0

    def reached(self) -> None:
        """It has come to its next state."""
        self.times.append(time.monotonic())

    def ended(self) -> None:
        """It was posted, and is done at once. Two threads may see that at the same time."""
        posted = STATES.index("posted") + 1
        self.times[posted:] = [time.monotonic()] * (len(STATES) - posted)

    @property
    def state(self) -> str:
        return "failed" if self.failed else STATES[len(self.times) - 1]

    def __str__(self) -> str:
        start, recorded = self.times[0], self.recorded
        later = (f"{name} +{1e3 * (at - start):.1f} ms" for name, at in zip(STATES[1:], self.times[1:], strict=False))
        clock = f"{time.strftime('%H:%M:%S', time.localtime(recorded))}.{int(recorded % 1 * 1000):03d}"
        number = "-" if self.number is None else self.number
        what = self.signature or "a collective"
        return f"  {number} {self.state}: {what} at {self.line}; {', '.join((f'recorded {clock}', *later))}"


class Flight:
    """The entries of a process, by group: the `last` ones; `pending` were recorded and are not posted; `waiting` were
    posted and are not launched, which may be more than the last. `flying` were launched, or are being launched, and are
    not known to have ended; `failed` are the last that ended with an error. For those of an order of less than
    `awaited` the script has waited, or for a later one, which takes as long."""

    def __init__(self) -> None:
        self.last: defaultdict[str, deque[Entry]] = defaultdict(lambda: deque(maxlen=KEPT))
        self.pending: defaultdict[str, deque[Entry]] = defaultdict(deque)
        self.waiting: defaultdict[str, deque[Entry]] = defaultdict(deque)
        self.flying: deque[Entry] = deque()
        self.failed: deque[Entry] = deque(maxlen=KEPT)
        self.awaited: Counter[str] = Counter()
        self._recorded: Counter[str] = Counter()

    def record(self, group: str, line: Any) -> Entry:
        """A collective of a group was recorded."""
        entry = Entry(group, line, order=self._recorded[group])
        self._recorded[group] += 1
        self.last[group].append(entry)
        self.pending[group].append(entry)
        return entry

    def wait_for(self, entry: Entry) -> None:
        """The script waits for a collective."""
        self.awaited[entry.group] = max(self.awaited[entry.group], entry.order + 1)

    def is_awaited(self, entry: Entry) -> bool:
        """Whether the script has waited for it."""
        return entry.order < self.awaited[entry.group]

    def are_awaited(self, groups: Iterable[str]) -> bool:
        """Whether it has waited for all that is recorded of these groups."""
        return all(self._recorded[group] == self.awaited[group] for group in groups)

    def withdraw(self, entry: Entry) -> None:
        """A collective was not recorded after all."""
        for entries in (self.pending[entry.group], self.last[entry.group]):
            if entry in entries:
                entries.remove(entry)

    def withdraw_last(self, groups: Iterable[str]) -> None:
        """The last collectives of these groups, one for each time that a group is named, will not be posted."""
        for group in groups:
            if self.pending[group]:
                self.withdraw(self.pending[group][-1])

    def post(self, group: str, line: str, number: int, signature: str, members: Sequence[int]) -> Entry:
        """The oldest that is pending is about to be launched as that number; `line` is that of its record, which may be
        shared."""
        pending = self.pending[group]
        if not pending:
            self.record(group, line)
        entry = pending.popleft()
        entry.number, entry.signature, entry.members = number, signature, tuple(members)
        entry.reached()
        return entry

    def of(self, group: str, number: int) -> Entry | None:
        """The collective of that number, if it is among the last."""
        return next((entry for entry in list(self.last[group]) if entry.number == number), None)

    def text(self) -> str:
        """All of it, a line for each collective."""
        rows: list[str] = []
        for group, entries in list(self.last.items()):
            rows.extend((f"group {group!r}:", *map(str, list(entries))))
        return "\n".join(rows) or "no collectives"
