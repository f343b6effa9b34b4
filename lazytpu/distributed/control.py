"""The client side of the control plane (see `helper`): the messages that this rank sends and receives."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from lazytpu.distributed.ledger import in_ranges
from lazytpu.engine.cutting.agreement import NO_MARK, Mark, Split
from lazytpu.interrupts import interruptible, wait_for

SETTLING = 1.0  # seconds that the helper needs to notice a lost rank and report it


class CollectiveError(RuntimeError):
    """Raised when the ranks of a group cannot continue together: one is lost, is late, or called another collective."""


class Listener(Protocol):
    """Callbacks for the helper's messages. They run on the thread of the rank's `Control`."""

    def wanted(self, group: str, number: int) -> None:
        """Other members have waited for this rank in collective `number` of a group."""
        ...

    def agreed(self, group: str, count: int) -> None:
        """All members of a group have posted its first `count` collectives, with equal signatures."""
        ...

    def broken(self, group: str, text: str, cut: bool) -> None:
        """A group cannot continue, for the reason `text`. `cut` says that its running collectives may never end."""
        ...

    def state(self, group: str, number: int) -> str:
        """Return how far this rank has come with collective `number` of a group."""
        ...

    def has(self, name: str) -> bool:
        """Return whether this rank will share the program `name`, which another rank lacks: it has it, or is compiling
        it."""
        ...


class Control:
    """The connection of one rank to the helper, perhaps through relays. Messages from the helper are passed on to
    `listener`."""

    def __init__(self, address: Mapping[str, Any], rank: int, folder: str, listener: Listener):
        self.rank = rank
        host, port = address["control"]
        try:
            self._socket = socket.create_connection((host, port), timeout=30)
        except OSError as error:
            raise CollectiveError(
                f"rank {rank} cannot reach the helper process of its job at {host}:{port} ({error}): the other ranks "
                "have ended, or given up waiting for this one"
            ) from error
        relays = "".join(f", or the relay process of {name}" for name in address["relays"])
        self._gone = f"the helper process of this job is gone{relays}: start the job again"
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._agreed: dict[str, int] = {}
        self._whole: dict[str, set[int]] = {}  # by group: the first collectives of whole windows
        self._split: dict[str, tuple[int, Split]] = {}  # by group: why its last window that is not whole is not
        self._broken: dict[str, str] = {}
        self._groups: set[str] = set()
        self._sought: dict[str, bool] = {}
        self._mails: dict[int, Callable[[int, str], None]] = {}
        self._lost: str | None = None
        self._is_gone = False
        self._listener = listener
        # Otherwise a DataLoader worker would keep the connection open after its parent has crashed.
        os.register_at_fork(after_in_child=self._let_go)
        self._send({"hello": rank, "token": address["token"], "folder": folder})
        threading.Thread(target=self._listen, name="lazytpu control", daemon=True).start()

    def _send(self, message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise CollectiveError(f"{self._gone} ({error})") from error

    def _listen(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self._receive(json.loads(line))
        except OSError:
            pass  # closed, by either side; the waiting callers get the error below
        finally:
            with self._changed:
                self._is_gone = self._lost is None
                self._lost = self._gone
                self._changed.notify_all()
            for number in list(self._mails):
                self._mails.pop(number)(-1, self._lost)

    def _receive(self, message: Any) -> None:
        if "wanted" in message:
            self._listener.wanted(message["wanted"], message["number"])
            return
        if "state" in message:
            text = self._listener.state(message["state"], message["number"])
            with suppress(CollectiveError):  # whoever requested it is gone
                self._send({"answer": {"group": message["state"], "number": message["number"], "text": text}})
            return
        if "seek" in message:
            name, has_program = message["seek"], self._listener.has(message["seek"])
            with suppress(CollectiveError):
                self._send({"has": {"name": name, "by": message["by"], "there": has_program}})
            return
        if "mail" in message:
            self._mails.pop(message["mail"])(message["with"], message["text"])
            return
        with self._changed:
            if "agreed" in message:
                self._agreed[message["agreed"]] = message["count"]
                for number, *split in message.get("split", ()):
                    self._split[message["agreed"]] = number, split
                if "whole" in message:
                    self._whole.setdefault(message["agreed"], set()).update(message["whole"])
            if "sought" in message:
                self._sought[message["sought"]] = message["there"]
            elif "broken" in message:
                self._broken[message["broken"]] = message["text"]
            self._changed.notify_all()
        if "agreed" in message:
            self._listener.agreed(message["agreed"], message["count"])
        if "broken" in message and not message.get("quiet"):
            self._listener.broken(message["broken"], message["text"], message.get("cut", False))

    def post(
        self,
        calls: Sequence[tuple[str, str, str]],
        members: Mapping[str, Sequence[int]],
        launches: bool = True,
        mark: Mark = NO_MARK,
    ) -> None:
        """Announce the collectives that this rank launches next, or calls that launch nothing.

        Each call is (group, signature, source line). The members of a group are sent along only the first time.
        With the digest of a `mark` this rank can launch all calls as one program. Raises CollectiveError.
        """
        new_groups = {group: in_ranges(ranks) for group, ranks in members.items() if group not in self._groups}
        marked = {key: text for key, text in (("mark", mark.digest), ("about", mark.about)) if text}
        try:
            self._send({"post": {"members": new_groups, "calls": calls, "launches": launches, **marked}})
        except CollectiveError as error:
            _, signature, line = calls[0]
            raise CollectiveError(f"{signature} at {line}: {error}") from error
        self._groups.update(new_groups)

    def mail(self, number: int, then: Callable[[int, str], None], **end: Any) -> None:
        """Announce that this rank sends or expects a message. `number` counts the messages of this rank.

        When the other end has been announced too, `then(rank, text)` runs on the listening thread. `text` is empty, or
        says why the message cannot be transferred.
        """
        self._mails[number] = then
        self._send({"mail": {"number": number, **end}})

    def withdraw(self, number: int, seconds: float) -> None:
        """Give up a message whose other end has not been announced within `seconds`. Unless it arrives meanwhile,
        `then` gets the reason."""
        with suppress(CollectiveError):  # the helper is gone, and every waiting caller gets that error
            self._send({"withdraw": {"number": number, "seconds": seconds}})

    def stuck(self, group: str, number: int, seconds: float, call: str) -> None:
        """Report that a launched collective has not ended within `seconds`."""
        with suppress(CollectiveError):  # the watchdog breaks the group itself
            self._send({"stuck": {"group": group, "number": number, "seconds": seconds, "call": call}})

    def fail(self, group: str, members: Sequence[int], text: str) -> None:
        """Report that this rank cannot continue in a group."""
        with suppress(CollectiveError):  # no other rank can receive it
            self._send({"fail": {"group": group, "members": in_ranges(members), "text": text}})

    def raised(self, text: str) -> None:
        """Report the exception that ends this process."""
        with suppress(CollectiveError):  # no other rank can receive it
            self._send({"raised": {"text": text}})

    @interruptible
    def seek(self, name: str, seconds: float, of: int | None) -> bool:
        """Return whether another rank will share the program `name`: it has it, or is compiling it.

        `of` is the rank to ask; with None, the helper asks one rank per other cache folder. A rank that does not answer
        within `seconds` counts as no.
        """
        with suppress(CollectiveError):
            self._sought.pop(name, None)  # drop a late answer to an earlier query
            self._send({"seek": {"name": name, "of": of}})
            with self._changed:
                wait_for(self._changed, lambda: name in self._sought or self._lost, seconds)
        return self._sought.pop(name, False)

    def wait(self, group: str, number: int, seconds: float, before: float = 0) -> None:
        """Wait until all members have posted collective `number` of a group with equal signatures.

        `before` is the time, in seconds, that this rank has waited for it already.

        Raises CollectiveError when the members disagree, or one does not arrive within `seconds`.
        """
        end = time.monotonic() + seconds
        gave_up = False
        while not self._is_agreed(group, number, end - time.monotonic()):
            if gave_up:
                raise CollectiveError(
                    f"the helper process of this job does not answer: nothing is known of the other ranks in "
                    f"collective {number} of group {group!r} after {seconds:g} s"
                )
            self._send({"give_up": {"group": group, "seconds": round(before + seconds, 1)}})
            gave_up, end = True, time.monotonic() + 5

    @interruptible
    def _is_agreed(self, group: str, number: int, seconds: float) -> bool:
        """Return whether the collective is agreed, after waiting for that at most `seconds`."""
        with self._changed:
            wait_for(
                self._changed,
                lambda: self._agreed.get(group, 0) > number or group in self._broken or self._lost,
                max(0.0, seconds),
            )
            if self._agreed.get(group, 0) > number:
                return True
            text = self._broken.get(group) or self._lost
        if text is not None:
            raise CollectiveError(text)
        return False

    def is_whole(self, group: str, number: int) -> bool:
        """Return whether all ranks launch the cut that begins with an agreed collective as one program."""
        with self._changed:
            windows = self._whole.get(group, set())
            whole = number in windows
            windows.discard(number)
            return whole

    def split(self, group: str, number: int) -> Split:
        """Return why the cut that begins with an agreed collective is not whole."""
        with self._changed:
            last, split = self._split.get(group, (None, ()))
            return split if last == number else ()

    def why_broken(self, group: str) -> str | None:
        """Return why a group is broken, or None if it is not known to be."""
        with self._changed:
            return self._broken.get(group) or self._lost

    @interruptible
    def why_soon(self, group: str, seconds: float) -> str | None:
        """Return why a group is broken, after waiting for the helper's message at most `seconds`."""
        with self._changed:
            wait_for(self._changed, lambda: group in self._broken or self._lost, seconds)
        return self.why_broken(group)

    def why_gone(self) -> str | None:
        """Return why no message of the helper can come, though this process has not left the job; None if one can."""
        return self._lost if self._is_gone else None

    def is_connected(self) -> bool:
        """Return whether the helper is still connected."""
        return self._lost is None

    def stop(self) -> None:
        """Make all waits fail, because this process ends or joins another job."""
        with self._changed:
            self._lost = self._lost or "this process has left the job"
            self._changed.notify_all()

    def leave(self) -> None:
        """Close the connection, because this process joins another job."""
        with suppress(CollectiveError, OSError):  # the helper has ended already
            self._send({"bye": self.rank})
            self._socket.shutdown(socket.SHUT_RDWR)

    def _let_go(self) -> None:
        if self._socket.fileno() >= 0:
            os.close(self._socket.detach())

    def close(self) -> None:
        """Report a regular end of the process.

        The socket stays open until the process ends, because the helper takes its end for the end of this rank.
        """
        os.dup(self._socket.fileno())
        with suppress(CollectiveError):  # the helper is gone, and so are the other ranks
            self._send({"bye": self.rank})
