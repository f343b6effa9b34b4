"""Connections without sockets, and the helper process without timers, for the simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lazytpu.distributed.comparison import Arbiter
from lazytpu.distributed.helper import Server


class Link:
    """One direction of a connection: `take` gets its messages one at a time, and None at its end."""

    __slots__ = ("closed", "lines", "ready", "take")

    def __init__(self, ready: list[Any], take: Callable[[bytes | None], object]):
        self.ready = ready
        self.take = take
        self.lines: list[bytes | None] = []
        self.closed = False

    def write(self, data: bytes | None, /) -> None:
        """Send a message, or None as the last one."""
        if not self.closed:
            self.lines.append(data)
            self.closed = data is None
            if len(self.lines) == 1:
                self.ready.append(self.step)

    def is_closing(self) -> bool:
        """Return whether the last message is sent."""
        return self.closed

    def step(self) -> bool:
        """Deliver a message. Return whether more are there."""
        self.take(self.lines.pop(0))
        return bool(self.lines)


class SimulatedServer(Server):
    """A server whose timers are run by the simulation. `posts` counts those that it gets, of one rank or several."""

    def __init__(self, size: int, make: Callable[..., Arbiter], timers: list[Callable[[], None]]):
        super().__init__(size, "token")
        self.timers = timers
        self.arbiter = make(size, self.tell, self.later)
        self.posts = 0

    def receive(self, ranks: Sequence[int], line: bytes) -> None:
        self.posts += line.startswith(b'{"post"')
        super().receive(ranks, line)

    def later(self, seconds: float, call: Any) -> None:
        self.timers.append(call)
