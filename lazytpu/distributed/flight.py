"""The flight recorder: the last collectives of each group, and the state of each on this rank."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

ENTRIES_PER_GROUP = 64  # entries that are kept of each group
STATES = ("recorded", "posted", "agreed", "launched", "done")
BEFORE_LAUNCH = STATES[:3]


@dataclass(slots=True, eq=False)
class Entry:
    """One collective of a group, as it passes through STATES or ends as "failed".

    - `line` is its source line; it is formatted only when shown.
    - `times` has the `time.monotonic()` of each state reached so far; `recorded` is the first of them as `time.time()`.
    - `number` is its index among the launched collectives of the group, None before it is posted.
    - `order` is its index among the recorded collectives of the group.
    - `status` is an array that becomes ready when the collective is done; None before the launch.
    """

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
        """Enter the next of STATES."""
        self.times.append(time.monotonic())

    def ended(self) -> None:
        """Go from "posted" directly to "done". Idempotent, because two threads may call it at the same time."""
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
        call = self.signature or "a collective"
        return f"  {number} {self.state}: {call} at {self.line}; {', '.join((f'recorded {clock}', *later))}"


class Flight:
    """The entries of this process, by group.

    - `last`: the last ENTRIES_PER_GROUP entries of a group.
    - `pending`: recorded and not posted. `waiting`: posted and not launched. Both may hold more than ENTRIES_PER_GROUP.
    - `flying`: launched, or being launched, and not known to have ended.
    - `failed`: the last ENTRIES_PER_GROUP entries that ended with an error.
    - `awaited`: the script has waited for all entries of a group whose `order` is less than this.
    """

    def __init__(self) -> None:
        self.last: defaultdict[str, deque[Entry]] = defaultdict(lambda: deque(maxlen=ENTRIES_PER_GROUP))
        self.pending: defaultdict[str, deque[Entry]] = defaultdict(deque)
        self.waiting: defaultdict[str, deque[Entry]] = defaultdict(deque)
        self.flying: deque[Entry] = deque()
        self.failed: deque[Entry] = deque(maxlen=ENTRIES_PER_GROUP)
        self.awaited: Counter[str] = Counter()
        self._recorded: Counter[str] = Counter()

    def record(self, group: str, line: Any) -> Entry:
        """Add the entry of a collective that is being recorded."""
        entry = Entry(group, line, order=self._recorded[group])
        self._recorded[group] += 1
        self.last[group].append(entry)
        self.pending[group].append(entry)
        return entry

    def wait_for(self, entry: Entry) -> None:
        """Note that the script waits for a collective, and so for all earlier ones of its group."""
        self.awaited[entry.group] = max(self.awaited[entry.group], entry.order + 1)

    def is_awaited(self, entry: Entry) -> bool:
        """Return whether the script has waited for this entry or a later one of its group."""
        return entry.order < self.awaited[entry.group]

    def are_awaited(self, groups: Iterable[str]) -> bool:
        """Return whether the script has waited for every recorded collective of these groups."""
        return all(self._recorded[group] == self.awaited[group] for group in groups)

    def withdraw(self, entry: Entry) -> None:
        """Remove the entry of a collective whose recording failed."""
        for entries in (self.pending[entry.group], self.last[entry.group]):
            if entry in entries:
                entries.remove(entry)

    def withdraw_last(self, groups: Iterable[str]) -> None:
        """Remove the latest pending entries: one for each occurrence of a group in `groups`."""
        for group in groups:
            if self.pending[group]:
                self.withdraw(self.pending[group][-1])

    def post(self, group: str, line: str, number: int, signature: str, members: Sequence[int]) -> Entry:
        """Mark the oldest pending entry of a group as posted, under `number`, and return it.

        `line` is the line of the collective's record, which several calls may share. It is used only if nothing is
        pending.
        """
        pending = self.pending[group]
        if not pending:
            self.record(group, line)
        entry = pending.popleft()
        entry.number, entry.signature, entry.members = number, signature, tuple(members)
        entry.reached()
        return entry

    def of(self, group: str, number: int) -> Entry | None:
        """Return the entry with this number, or None if it is not among the last ones."""
        return next((entry for entry in list(self.last[group]) if entry.number == number), None)

    def text(self) -> str:
        """Return the report: a line for each kept entry, by group."""
        rows: list[str] = []
        for group, entries in list(self.last.items()):
            rows.extend((f"group {group!r}:", *map(str, list(entries))))
        return "\n".join(rows) or "no collectives"
