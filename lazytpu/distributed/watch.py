"""The watchdog: a collective that was launched and does not end, because another rank has stopped inside it, say.

A thread looks at what was launched. What takes longer than the timeout of its group is told to the helper, which asks
all members how far they are, and breaks the group. When a group is broken while one of its collectives runs, its
connections are cut, so that it fails here at once; XLA itself would wait for ever. On a TPU nothing takes a collective
back, so the process ends, as it does by NCCL's watchdog; and so it does where XLA goes on to wait (see `links`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lazytpu.distributed.control import CollectiveError, Control
from lazytpu.distributed.flight import BEFORE_LAUNCH, Entry, Flight
from lazytpu.options import options
from lazytpu.runtime.errors import RunError
from lazytpu.runtime.jobs.links import Links
from lazytpu.runtime.xla import client

TICK = 0.2  # seconds
ANSWER = 3.0  # seconds in which the helper has to say why a group is broken
LOOKS = 50  # after so many, each a TICK, a collective without connections that the device is at will not end


class Watch:
    """Watches the collectives of `flight`. `seconds` has the timeout of each group, `text` makes the report."""

    def __init__(self, flight: Flight, seconds: dict[str, float], text: Callable[[], str], rank: int):
        self.flight = flight
        self.seconds = seconds
        self.text = text
        self.rank = rank
        self.control: Control | None = None
        self.oldest: Callable[[], Any] = object  # the status of the run that the device is at: of none yet
        self._looks = 0
        self._links: dict[frozenset[int], Links] = {}
        self._cut: dict[frozenset[int], tuple[str, str]] = {}  # the group that was broken, and why
        self._has_failed = False  # a collective that was launched
        self._broken: dict[str, str] = {}  # of groups: why what runs in them may never end
        self._asked: dict[Entry, float] = {}
        self._dumped: set[str] = set()
        self._launching = threading.local()  # its `entry`: what this thread is launching
        self._settling = threading.Lock()
        self._busy = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lazytpu watchdog", daemon=True)
        self._thread.start()

    def begin(self, entry: Entry) -> bool:
        """A collective is about to be launched. Returns whether it is the first of these members.

        Raises CollectiveError when the group was broken since all agreed on it: `broken` may have missed it.
        """
        members = frozenset(entry.members)
        first = members not in self._links and len(members) > 1
        if first:
            self._links[members] = Links()
        entry.reached()
        if entry in self.flight.waiting[entry.group]:
            self.flight.waiting[entry.group].remove(entry)
        self._launching.entry = entry
        self.flight.flying.append(entry)
        self._busy.set()
        if entry.group in self._broken:
            raise CollectiveError(self._broken[entry.group])
        return first

    def launched(self, entry: Entry, status: Any, first: bool) -> None:
        """It was launched, and is done when `status` is there."""
        entry.status = status
        if first:
            try:
                client.wait([status])
            finally:  # what is opened later is not its own, even if it failed
                self._links[frozenset(entry.members)].complete()
        self._launching.entry = None
        if client.is_ready(status):
            self._settle(entry)

    def give_up(self, group: str) -> list[Entry]:
        """Mark as failed, and return, what of a group was not launched, or whose launch failed on this thread."""
        launching, self._launching.entry = getattr(self._launching, "entry", None), None
        first = [launching] if launching is not None and launching.group == group else []
        with self._settling:
            given_up: list[Entry] = []
            for entry in dict.fromkeys((*first, *self.flight.waiting.pop(group, ()), *self.flight.last[group])):
                is_begun = entry is launching and entry.status is None
                if is_begun:
                    self._has_failed = True
                    self._ended(entry)
                    links = self._links.get(frozenset(entry.members))
                    if links is not None and not links.is_complete:  # it has opened none: the next is the first
                        del self._links[frozenset(entry.members)]
                if is_begun or entry.state in BEFORE_LAUNCH:
                    entry.failed = True
                    given_up.append(entry)
            return given_up

    def why_cut(self, group: str, members: Sequence[int]) -> str | None:
        """Why the connections between the members of a group are cut, if they are."""
        broken, text = self._cut.get(frozenset(members), (group, None))
        if text is None or broken == group:
            return text
        return (
            f"the connections between its ranks are shut down, since group {broken!r} of the same ranks is broken. "
            f"They are opened again by init_process_group() after destroy_process_group(): {text}"
        )

    def has_cut(self) -> bool:
        """Whether connections between ranks are cut, or may have broken."""
        return bool(self._cut) or self._has_failed

    def broken(self, group: str, text: str) -> None:
        """A group is broken: end what waits in it."""
        self._broken.setdefault(group, text)  # before it looks: what begins after that sees it
        running = [entry for entry in list(self.flight.flying) if entry.group == group and not is_done(entry)]
        for members in {frozenset(entry.members) for entry in running}:
            self._cut.setdefault(members, (group, text))
            if members in self._links:
                self._links[members].cut()
        self.dump(group, text)
        if running and client.platform() != "cpu":
            _tell(f"lazytpu: {running[0].signature} at {running[0].line} cannot be taken back: this process ends")
            os._exit(1)

    def explain(self, reason: str) -> str:
        """XLA's reason for a failure, with what is known of it if it was a collective that failed."""
        if "Gloo" not in reason and "gloo" not in reason:
            return reason
        end = time.monotonic() + ANSWER
        launching = getattr(self._launching, "entry", None)
        while time.monotonic() < end and self.control is not None:
            latest = [*reversed(list(self.flight.flying)), *reversed(list(self.flight.failed))]
            for entry in latest if launching is None else [launching]:
                text = self.why_cut(entry.group, entry.members) or self.control.why_broken(entry.group)
                text = text or self.control.why_broken(f"start of {entry.group}")  # where ranks compare nothing
                if text is not None:
                    return f"{entry.signature} at {entry.line}: {text}\n({reason})"
            time.sleep(0.02)
        return reason

    def close(self, end: float) -> bool:
        """Stop to look, and wait for that until `end` (time.monotonic()). Returns whether the thread has stopped."""
        self._closed.set()
        self._busy.set()
        self._thread.join(min(threading.TIMEOUT_MAX, max(0.0, end - time.monotonic())))
        for links in list(self._links.values()):
            links.close()
        return not self._thread.is_alive()

    def dump(self, group: str, text: str) -> None:
        """Write the report, once for a group: to standard error, and into the folder `lazytpu.options.dump`."""
        if group in self._dumped:
            return
        self._dumped.add(group)
        report = f"lazytpu: group {group!r} is broken on rank {self.rank}: {text}\n{self.text()}"
        _tell(report)
        if options.dump is not None:
            path = Path(options.dump) / f"collectives-{self.rank}.txt"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{report}\n")
            except (OSError, ValueError) as error:  # the error that is reported matters more
                _tell(f"lazytpu: cannot write this report to {path}: {error}")

    def _look(self) -> None:
        while True:
            self._busy.wait()
            self._busy.clear()  # before it looks: what is launched meanwhile sets it again
            if self._closed.wait(TICK):
                return
            for entry in list(self.flight.flying):
                if is_done(entry):
                    self._settle(entry)
                elif time.monotonic() - entry.times[3] > self.seconds[entry.group]:
                    self._too_long(entry)
            if self.flight.flying:
                self._busy.set()
            self._end_if_left()

    def _end_if_left(self) -> None:
        """End the process when a collective whose connections are cut goes on to wait for others. Where these are still
        to be made, in the first one of its members, XLA's own timeout ends it."""
        oldest = self.oldest()
        for entry in list(self.flight.flying):
            text, links = self.why_cut(entry.group, entry.members), self._links.get(frozenset(entry.members))
            is_waiting = entry.status is oldest and not is_done(entry)
            if is_waiting and text is not None and links is not None and links.is_complete:
                self._looks += 1  # no clock: it goes on while this process is stopped
                if self._looks > LOOKS:
                    _tell(f"lazytpu: {entry.signature} at {entry.line} does not end: this process ends. {text}")
                    os._exit(1)
                return
        self._looks = 0

    def _too_long(self, entry: Entry) -> None:
        assert self.control is not None
        now, seconds = time.monotonic(), self.seconds[entry.group]
        asked = self._asked.setdefault(entry, now)
        if asked == now:
            self.control.stuck(entry.group, entry.number or 0, seconds, f"{entry.signature} at {entry.line}")
        elif now - asked > ANSWER and self.why_cut(entry.group, entry.members) is None:
            self.broken(entry.group, f"{entry.signature} at {entry.line} did not end within {seconds:g} s")

    def _settle(self, entry: Entry) -> None:
        """Note how a collective has ended, once: the thread that launched it and the watchdog both see that it has."""
        with self._settling:
            if entry.status is None or entry.failed:
                return
            try:
                client.wait([entry.status])
            except RunError:
                entry.failed = self._has_failed = True
                self.flight.failed.append(entry)
            else:
                entry.status = None
                entry.reached()
            self._ended(entry)

    def _ended(self, entry: Entry) -> None:
        """A collective runs no more."""
        self._asked.pop(entry, None)
        if entry in self.flight.flying:  # else another thread is just about to add it
            self.flight.flying.remove(entry)


def is_done(entry: Entry) -> bool:
    """Whether a collective that was launched has ended, or one will never be launched."""
    status = entry.status
    return entry.state in ("done", "failed") or (status is not None and client.is_ready(status))


def _tell(text: str) -> None:
    """Write to standard error, if that is open."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
