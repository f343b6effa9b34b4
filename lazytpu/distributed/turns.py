"""The turn of a collective: it waits until the other ranks are at the same one, and is told when it was launched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from lazytpu.distributed.control import CollectiveError, Control
from lazytpu.distributed.flight import Entry, Flight
from lazytpu.distributed.watch import Watch
from lazytpu.engine.cutting.agreement import Turn


class Job(Protocol):
    """The job of a collective. `seconds` has the timeout of each group."""

    control: Control
    flight: Flight
    watch: Watch
    seconds: dict[str, float]

    def is_left(self) -> bool:
        """Whether this process ends, or goes on in another job."""
        ...


class Collective(Turn):
    """The turn of a collective of a job. `number` counts those of its group that ranks compare; None if they trust."""

    def __init__(self, world: Job, entry: Entry, number: int | None):
        self.world = world
        self.entry = entry
        self.number = number
        self.first = False

    def wait(self) -> None:
        """As `Turn` says. Raises CollectiveError."""
        with self.named():
            broken = self.world.watch.why_cut(self.entry.group, self.entry.members)
            if self.number is None:
                broken = broken or self.world.control.why_broken(self.entry.group)
            if broken is None and self.entry.failed:  # all may have posted it, but one before it has failed here
                broken = self.world.control.why_broken(self.entry.group) or "an earlier collective has failed here"
            if broken is not None:
                raise CollectiveError(broken)
            if self.number is not None:
                self.agree()
            self.entry.reached()
            self.first = self.world.watch.begin(self.entry)

    def meet(self, seconds: float | None = None) -> None:
        """Wait for the others, where nothing is launched; as long as the timeout of the group says, or so many seconds.
        Raises CollectiveError."""
        with self.named():
            self.agree(seconds)
        self.met()

    def met(self) -> None:
        """All have come, where nothing is launched."""
        if self.entry.state == "posted":
            self.entry.ended()

    def agree(self, seconds: float | None = None) -> None:
        """Wait until all have posted this. Raises CollectiveError."""
        assert self.number is not None
        seconds = self.world.seconds[self.entry.group] if seconds is None else seconds
        self.world.control.wait(self.entry.group, self.number, seconds)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors with the call, after a report."""
        entry, world = self.entry, self.world
        try:
            yield
        except CollectiveError as error:
            if not world.is_left():
                world.watch.dump(entry.group, str(error))
            raise CollectiveError(f"{entry.signature} at {entry.line}: {error}") from None

    def is_awaited(self) -> bool:
        """As `Turn` says."""
        return self.world.flight.is_awaited(self.entry)

    def launched(self, status: Any) -> None:
        """As `Turn` says."""
        self.world.watch.launched(self.entry, status, self.first)
