"""The watchdog: it detects launched collectives that do not end, for example because another rank has stopped inside
one.

A thread polls the launched collectives. It reports one that exceeds the timeout of its group to the helper. The helper
asks all members for their states, and breaks the group.

When a group is broken while one of its collectives runs, the group's connections are cut, so that the collective fails
here at once; XLA itself would wait forever. On a TPU a launched collective cannot be cancelled, so the process exits,
as with NCCL's watchdog. It also exits where XLA keeps waiting after the cut (see `links`).
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
ANSWER = 3.0  # seconds in which the helper has to send the reason why a group is broken
LAST = 60.0  # seconds, at most the group's timeout, in which running collectives may end after the helper is gone
MAX_POLLS = 50  # polls (every TICK) after which a collective without connections that runs on the device counts as hung


class Watch:
    """The watchdog of the collectives in `flight`. `seconds` has the timeout of each group; `text` returns the
    report."""

    def __init__(self, flight: Flight, seconds: dict[str, float], text: Callable[[], str], rank: int):
        self.flight = flight
        self.seconds = seconds
        self.text = text
        self.rank = rank
        self.control: Control | None = None
        self.oldest: Callable[[], Any] = object  # returns the status array of the run that the device executes
        self._polls = 0
        self._links: dict[frozenset[int], Links] = {}
        self._cut: dict[frozenset[int], tuple[str, str]] = {}  # the broken group, and the reason
        self._has_failed = False  # whether a launched collective has failed
        self._broken: dict[str, str] = {}  # group name -> reason why its running collectives may never end
        self._reported: dict[Entry, float] = {}
        self._dumped: set[str] = set()
        self._launching = threading.local()  # its `entries`: the collectives that this thread is launching
        self._settling = threading.Lock()
        self._busy = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="lazytpu watchdog", daemon=True)
        self._thread.start()

    def begin(self, entry: Entry) -> bool:
        """Note that a collective is about to be launched. Returns whether it is the first one of its members.

        Raises CollectiveError when the group was broken after all had agreed: `broken` may have missed this entry.
        """
        members = frozenset(entry.members)
        first = members not in self._links and len(members) > 1
        if first:
            self._links[members] = Links()
        entry.reached()
        if entry in self.flight.waiting[entry.group]:
            self.flight.waiting[entry.group].remove(entry)
        self._launched_here().append(entry)
        self.flight.flying.append(entry)
        self._busy.set()
        if entry.group in self._broken:
            raise CollectiveError(self._broken[entry.group])
        return first

    def launched(self, entry: Entry, status: Any, first: bool) -> None:
        """Note that a collective was launched; it is done when `status` is ready. `first`: it opens the connections of
        its members."""
        entry.status = status
        if first:
            try:
                client.wait([status])
            finally:  # connections opened from now on belong to another group, even if this run failed
                self._links[frozenset(entry.members)].complete()
        self._launched_here().remove(entry)
        if client.is_ready(status):
            self._settle(entry)

    def settle_ended(self) -> None:
        """Resolve the outcomes of the collectives that have ended since the last poll."""
        for entry in list(self.flight.flying):
            if is_done(entry):
                self._settle(entry)

    def _launched_here(self) -> list[Entry]:
        """Return the collectives that this thread is launching: one, or all of a program."""
        if not hasattr(self._launching, "entries"):
            self._launching.entries = []
        return self._launching.entries

    def give_up(self, group: str) -> list[Entry]:
        """Mark the collectives of a group as failed that are not launched, or whose launch failed on this thread.
        Returns them."""
        launching = self._launched_here()
        started = [entry for entry in launching if entry.group == group]
        self._launching.entries = [entry for entry in launching if entry.group != group]
        with self._settling:
            given_up: list[Entry] = []
            for entry in dict.fromkeys((*started, *self.flight.waiting.pop(group, ()), *self.flight.last[group])):
                is_begun = entry in started and entry.status is None
                if is_begun:
                    self._has_failed = True
                    self._ended(entry)
                    links = self._links.get(frozenset(entry.members))
                    # It has opened no connections, so the next collective is the first.
                    if links is not None and not links.is_complete:
                        del self._links[frozenset(entry.members)]
                if is_begun or entry.state in BEFORE_LAUNCH:
                    entry.failed = True
                    given_up.append(entry)
            return given_up

    def why_cut(self, group: str, members: Sequence[int]) -> str | None:
        """Return why the connections between the members of a group are cut; None if they are not."""
        broken, text = self._cut.get(frozenset(members), (group, None))
        if text is None or broken == group:
            return text
        return (
            f"the connections between its ranks are shut down, since group {broken!r} of the same ranks is broken. "
            f"They are opened again by init_process_group() after destroy_process_group(): {text}"
        )

    def has_cut(self) -> bool:
        """Return whether connections between ranks are cut, or may be broken."""
        return bool(self._cut) or self._has_failed

    def broken(self, group: str, text: str) -> None:
        """Handle the message that a group is broken: end its running collectives."""
        # before the check below, so that a launch that begins after it sees the reason
        self._broken.setdefault(group, text)
        running = [entry for entry in list(self.flight.flying) if entry.group == group and not is_done(entry)]
        for members in {frozenset(entry.members) for entry in running}:
            self._cut.setdefault(members, (group, text))
            if members in self._links:
                self._links[members].cut()
        self.dump(group, text)
        if running and client.platform() != "cpu":
            _print(f"lazytpu: {running[0].signature} at {running[0].line} cannot be taken back: this process ends")
            os._exit(1)

    def explain(self, reason: str) -> str:
        """Return XLA's reason for a failure, extended by the control plane's if a collective failed."""
        if "Gloo" not in reason and "gloo" not in reason:
            return reason
        end = time.monotonic() + ANSWER
        launching = self._launched_here()
        while time.monotonic() < end and self.control is not None:
            latest = [*reversed(list(self.flight.flying)), *reversed(list(self.flight.failed))]
            for entry in launching or latest:
                text = self.why_cut(entry.group, entry.members) or self.control.why_broken(entry.group)
                # With collectives="trusted" only the start of the group is compared.
                text = text or self.control.why_broken(f"start of {entry.group}")
                if text is not None:
                    return f"{entry.signature} at {entry.line}: {text}\n({reason})"
            time.sleep(0.02)
        return reason

    def close(self, end: float) -> bool:
        """Stop the watchdog's thread, waiting until `end` (time.monotonic()). Returns whether it has stopped."""
        self._closed.set()
        self._busy.set()
        self._thread.join(min(threading.TIMEOUT_MAX, max(0.0, end - time.monotonic())))
        for links in list(self._links.values()):
            links.close()
        return not self._thread.is_alive()

    def dump(self, group: str, text: str) -> None:
        """Write the report once per group: to standard error, and into the folder `lazytpu.options.dump`."""
        if group in self._dumped:
            return
        self._dumped.add(group)
        report = f"lazytpu: group {group!r} is broken on rank {self.rank}: {text}\n{self.text()}"
        _print(report)
        if options.dump is not None:
            path = Path(options.dump) / f"collectives-{self.rank}.txt"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{report}\n")
            except (OSError, ValueError) as error:  # do not hide the error that is being reported
                _print(f"lazytpu: cannot write this report to {path}: {error}")

    def _poll(self) -> None:
        while True:
            self._busy.wait()
            self._busy.clear()  # before the poll: a launch meanwhile sets it again
            if self._closed.wait(TICK):
                return
            self.settle_ended()
            for entry in list(self.flight.flying):
                if not is_done(entry):
                    self._check(entry)
            if self.flight.flying:
                self._busy.set()
            self._end_if_left()

    def _end_if_left(self) -> None:
        """Exit if a collective keeps waiting after its connections were cut.

        A first collective, which is still connecting, ends by XLA's own timeout.
        """
        oldest = self.oldest()
        for entry in list(self.flight.flying):
            text, links = self.why_cut(entry.group, entry.members), self._links.get(frozenset(entry.members))
            is_waiting = entry.status is oldest and not is_done(entry)
            if is_waiting and text is not None and links is not None and links.is_complete:
                self._polls += 1  # polls, not seconds: a clock would also run while this process is stopped
                if self._polls > MAX_POLLS:
                    _print(f"lazytpu: {entry.signature} at {entry.line} does not end: this process ends. {text}")
                    os._exit(1)
                return
        self._polls = 0

    def _check(self, entry: Entry) -> None:
        """Handle a collective that runs for too long, or since the helper is gone, which would know of lost ranks."""
        now, seconds = time.monotonic(), self.seconds[entry.group]
        gone = self.control.why_gone() if self.control is not None else None
        if gone is None:
            if now - entry.times[3] > seconds:
                self._too_long(entry)
        elif now - self._reported.setdefault(entry, now) > min(LAST, seconds) and not self._is_cut(entry):
            self.broken(entry.group, f"{entry.signature} at {entry.line} does not end: {gone}")

    def _is_cut(self, entry: Entry) -> bool:
        return self.why_cut(entry.group, entry.members) is not None

    def _too_long(self, entry: Entry) -> None:
        """Report an overdue collective to the helper. If no answer comes within ANSWER, break its group here."""
        assert self.control is not None
        now, seconds = time.monotonic(), self.seconds[entry.group]
        reported = self._reported.setdefault(entry, now)
        if reported == now:
            self.control.stuck(entry.group, entry.number or 0, seconds, f"{entry.signature} at {entry.line}")
        elif now - reported > ANSWER and not self._is_cut(entry):
            self.broken(entry.group, f"{entry.signature} at {entry.line} did not end within {seconds:g} s")

    def _settle(self, entry: Entry) -> None:
        """Resolve the outcome of a collective, once: the launching thread and the watchdog may both see that it has
        ended."""
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
        """Remove a collective that no longer runs."""
        self._reported.pop(entry, None)
        if entry in self.flight.flying:  # otherwise another thread is about to add it
            self.flight.flying.remove(entry)


def is_done(entry: Entry) -> bool:
    """Return whether a launched collective has ended, or a failed one will never be launched."""
    status = entry.status
    return entry.state in ("done", "failed") or (status is not None and client.is_ready(status))


def _print(text: str) -> None:
    """Write to standard error, if it is open."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
