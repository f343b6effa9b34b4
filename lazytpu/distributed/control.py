"""This rank's side of the control plane (see `helper`): what it posts, and what it is told."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from lazytpu.interrupts import interruptible, wait_for

SETTLING = 1.0  # seconds in which the helper sees that a rank is gone, and says so


class CollectiveError(RuntimeError):
    """The ranks of a group cannot go on together: one is gone, came too late, or called something else."""


class Listener(Protocol):
    """What a rank does when the helper tells it something, on the thread of its `Control`."""

    def wanted(self, group: str, number: int) -> None:
        """Others have waited for this rank in the next collective of a group."""
        ...

    def agreed(self, group: str, count: int) -> None:
        """All members of a group have come to so many of its collectives."""
        ...

    def broken(self, group: str, text: str, cut: bool) -> None:
        """A group cannot go on, for that reason; `cut` says that what runs in it may never end."""
        ...

    def state(self, group: str, number: int) -> str:
        """How far this rank is with a collective."""
        ...

    def has(self, name: str) -> bool:
        """Whether this rank gives the others a program that one of them lacks: it has it, or is at it."""
        ...


class Control:
    """The connection to the helper, which tells things to `listener`."""

    def __init__(self, host: str, port: int, rank: int, token: str, folder: str, listener: Listener):
        self.rank = rank
        try:
            self._socket = socket.create_connection((host, port), timeout=30)
        except OSError as error:
            raise CollectiveError(
                f"rank {rank} cannot reach the helper process of its job at {host}:{port} ({error}): the other ranks "
                "have ended, or given up waiting for this one"
            ) from error
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._agreed: dict[str, int] = {}
        self._broken: dict[str, str] = {}
        self._groups: set[str] = set()
        self._sought: dict[str, bool] = {}
        self._mails: dict[int, Callable[[int, str], None]] = {}
        self._lost: str | None = None
        self._listener = listener
        os.register_at_fork(after_in_child=self._let_go)  # a worker of a DataLoader would keep it after a crash
        self._send({"hello": rank, "token": token, "folder": folder})
        threading.Thread(target=self._listen, name="lazytpu control", daemon=True).start()

    def _send(self, message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise CollectiveError(f"the helper process of this job is gone ({error}): start the job again") from error

    def _listen(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self._told(json.loads(line))
        except OSError:
            pass  # closed, by either side: what waits is told below
        finally:
            with self._changed:
                self._lost = "the helper process of this job is gone: start the job again"
                self._changed.notify_all()
            for number in list(self._mails):
                self._mails.pop(number)(-1, self._lost)

    def _told(self, message: Any) -> None:
        if "wanted" in message:
            self._listener.wanted(message["wanted"], message["number"])
            return
        if "state" in message:
            text = self._listener.state(message["state"], message["number"])
            with suppress(CollectiveError):  # nobody is left who asks
                self._send({"answer": {"group": message["state"], "number": message["number"], "text": text}})
            return
        if "seek" in message:
            name, there = message["seek"], self._listener.has(message["seek"])
            with suppress(CollectiveError):
                self._send({"has": {"name": name, "by": message["by"], "there": there}})
            return
        if "mail" in message:
            self._mails.pop(message["mail"])(message["with"], message["text"])
            return
        with self._changed:
            if "agreed" in message:
                self._agreed[message["agreed"]] = message["count"]
            if "sought" in message:
                self._sought[message["sought"]] = message["there"]
            elif "broken" in message:
                self._broken[message["broken"]] = message["text"]
            self._changed.notify_all()
        if "agreed" in message:
            self._listener.agreed(message["agreed"], message["count"])
        if "broken" in message and not message.get("quiet"):
            self._listener.broken(message["broken"], message["text"], message.get("cut", False))

    def post(self, calls: Sequence[tuple[str, str, str, bool]], members: Mapping[str, Sequence[int]]) -> None:
        """Say which collectives this rank launches next: the (group, signature, source line, whether anything is
        launched) of each. The helper is told once who the members of a group are."""
        told = {group: list(each) for group, each in members.items() if group not in self._groups}
        self._send({"post": {"members": told, "calls": calls}})
        self._groups.update(told)

    def mail(self, number: int, then: Callable[[int, str], None], **end: Any) -> None:
        """Say that this rank sends a message, or expects one: its `number` of all of them. When the other end is there,
        too, `then` is called with its rank, and why they cannot go on, if they cannot; on the thread that listens."""
        self._mails[number] = then
        self._send({"mail": {"number": number, **end}})

    def withdraw(self, number: int, seconds: float) -> None:
        """The other end of a message has not come within so many seconds. Unless it comes now, `then` is told why."""
        with suppress(CollectiveError):  # then the helper is gone, which is told to all
            self._send({"withdraw": {"number": number, "seconds": seconds}})

    def stuck(self, group: str, number: int, seconds: float, call: str) -> None:
        """Say that a collective that was launched did not end within so many seconds."""
        with suppress(CollectiveError):  # then the caller does without the helper
            self._send({"stuck": {"group": group, "number": number, "seconds": seconds, "call": call}})

    def fail(self, group: str, members: Sequence[int], text: str) -> None:
        """Say that this rank cannot go on in a group."""
        with suppress(CollectiveError):  # nobody is left who could be told
            self._send({"fail": {"group": group, "members": list(members), "text": text}})

    @interruptible
    def seek(self, name: str, seconds: float, of: int | None) -> bool:
        """Whether the rank `of`, or with None one with another cache folder, has a program or is at it, and will give
        it to the others; whoever does not answer within so many seconds will not."""
        with suppress(CollectiveError):
            self._sought.pop(name, None)  # an answer to an earlier question that came too late
            self._send({"seek": {"name": name, "of": of}})
            with self._changed:
                wait_for(self._changed, lambda: name in self._sought or self._lost, seconds)
        return self._sought.pop(name, False)

    def wait(self, group: str, number: int, seconds: float, before: float = 0) -> None:
        """Wait until all members have posted the same collective of that number; this rank has waited for it `before`,
        too.

        Raises CollectiveError when they have not, or not within so many seconds.
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
        """Whether it is, after waiting for that at most so many seconds."""
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

    def why_broken(self, group: str) -> str | None:
        """What is known to have broken a group."""
        with self._changed:
            return self._broken.get(group) or self._lost

    @interruptible
    def why_soon(self, group: str, seconds: float) -> str | None:
        """The same, which may come to be known within so many seconds."""
        with self._changed:
            wait_for(self._changed, lambda: group in self._broken or self._lost, seconds)
        return self.why_broken(group)

    def is_connected(self) -> bool:
        """Whether the helper is still there."""
        return self._lost is None

    def stop(self) -> None:
        """End all waits: the process ends, or goes on in another job."""
        with self._changed:
            self._lost = self._lost or "this process has left the job"
            self._changed.notify_all()

    def leave(self) -> None:
        """End the connection: this process goes on in another job."""
        with suppress(CollectiveError, OSError):  # it has ended
            self._send({"bye": self.rank})
            self._socket.shutdown(socket.SHUT_RDWR)

    def _let_go(self) -> None:
        if self._socket.fileno() >= 0:
            os.close(self._socket.detach())

    def close(self) -> None:
        """Say, at the end of the process, that this is no crash. The connection ends with the process, and not before:
        the helper takes it for the life of this rank."""
        os.dup(self._socket.fileno())
        with suppress(CollectiveError):  # then the helper is gone, and nobody is left to be told
            self._send({"bye": self.rank})
