"""The tickets of collectives: each waits until all ranks have posted the same collective, and is notified of its
launch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from lazytpu.distributed.control import CollectiveError, Control
from lazytpu.distributed.flight import Entry, Flight
from lazytpu.distributed.watch import Watch
from lazytpu.engine.cutting.agreement import Split, Turn


class Job(Protocol):
    """The job of a collective, as its ticket uses it. `seconds` has the timeout of each group."""

    control: Control
    flight: Flight
    watch: Watch
    seconds: dict[str, float]

    def is_left(self) -> bool:
        """Return whether this process ends or joins another job."""
        ...


class Collective(Turn):
    """A handle for launching one collective in order.

    `number` is its index among the compared collectives of its group, or None when comparison is off.
    """

    def __init__(self, world: Job, entry: Entry, number: int | None):
        self.world = world
        self.entry = entry
        self.number = number
        self.first = False

    @property
    def members(self) -> tuple[int, ...]:
        """Implement `Turn.members`."""
        return self.entry.members

    def wait(self) -> None:
        """Implement `Turn.wait`. Raises CollectiveError."""
        with self.named():
            broken = self.world.watch.why_cut(self.entry.group, self.entry.members)
            if self.number is None:
                broken = broken or self.world.control.why_broken(self.entry.group)
            # All ranks may have posted it, while an earlier collective has failed here.
            if broken is None and self.entry.failed:
                broken = self.world.control.why_broken(self.entry.group) or "an earlier collective has failed here"
            if broken is not None:
                raise CollectiveError(broken)
            if self.number is not None:
                self.agree()
            self.entry.reached()
            self.first = self.world.watch.begin(self.entry)

    def meet(self, seconds: float | None = None) -> None:
        """Wait for the other members in a call that launches nothing, at most `seconds` (None: the group's timeout).

        Raises CollectiveError.
        """
        with self.named():
            self.agree(seconds)
        self.met()

    def met(self) -> None:
        """Mark a call that launches nothing as done."""
        if self.entry.state == "posted":
            self.entry.ended()

    def agree(self, seconds: float | None = None) -> None:
        """Wait until all members have posted this collective. Raises CollectiveError."""
        assert self.number is not None
        seconds = self.world.seconds[self.entry.group] if seconds is None else seconds
        self.world.control.wait(self.entry.group, self.number, seconds)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Re-raise errors with the call's signature and line, after the report is written."""
        entry, world = self.entry, self.world
        try:
            yield
        except CollectiveError as error:
            if not world.is_left():
                world.watch.dump(entry.group, str(error))
            raise CollectiveError(f"{entry.signature} at {entry.line}: {error}") from None

    def is_whole(self) -> bool:
        """Implement `Turn.is_whole`. Raises CollectiveError."""
        if self.number is None:
            return False
        with self.named():
            self.agree()
        return self.world.control.is_whole(self.entry.group, self.number)

    def split(self) -> Split:
        """Implement `Turn.split`."""
        return () if self.number is None else self.world.control.split(self.entry.group, self.number)

    def is_awaited(self) -> bool:
        """Implement `Turn.is_awaited`."""
        return self.world.flight.is_awaited(self.entry)

    def launched(self, status: Any) -> None:
        """Implement `Turn.launched`."""
        self.world.watch.launched(self.entry, status, self.first)
