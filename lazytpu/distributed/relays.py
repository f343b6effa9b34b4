"""Relays between the ranks of a large job and its helper process. They decide nothing, so the helper stays the only
process that answers.

A relay serves FAN_IN ranks, or FAN_IN relays of the level below. It forwards the messages of each rank in their order,
after the ranks that sent them as text: `0:64:1 {"post": ...}`. Equal posts of ranks that wait at the same time become
one message. An answer comes once for all ranks behind a relay, with these ranks in front in the same form.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from lazytpu.distributed.ledger import CRASHED, from_ranges, in_ranges

JOINING = 600.0  # seconds in which the first rank has to connect
LINE = 1 << 28  # bytes of one message: a cut may have thousands of collectives
BACKLOG = 4096  # connections that may wait to be accepted: all ranks connect at once
HOLD = 0.001  # seconds that a post waits for equal ones, unless all ranks of the relay have come as far
ROUTES = 1 << 12  # sets of ranks whose connections are kept


class Writer(Protocol):
    """The sending side of a connection, as of `asyncio.StreamWriter`."""

    def write(self, data: bytes, /) -> None:
        """Send bytes."""
        ...

    def is_closing(self) -> bool:
        """Return whether nothing more can be sent."""
        ...


class Connections:
    """The connections of the helper or a relay: one per rank, or per relay. One without the `token` is closed.

    `writers` has the connection by which a rank is reached, and `behind` the ranks of each connection.
    """

    def __init__(self, token: str):
        self.token = token
        self.writers: dict[int, Writer] = {}
        self.behind: dict[Writer, dict[int, None]] = {}
        self.relays: dict[Writer, str] = {}  # connections of relays, with the name of each
        self.empty = asyncio.Event()
        self._routes: dict[int, tuple[Sequence[int], list[tuple[Writer, bytes]]]] = {}

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        try:
            if self.attach(writer, await reader.readline()):
                while line := await reader.readline():
                    self.take(writer, line)
        except (ConnectionError, ValueError):
            pass  # treated like the end of the connection
        finally:
            writer.close()
            self.detach(writer)

    def attach(self, writer: Writer, line: bytes) -> bool:
        """Admit a connection by its first message. Return whether it has the token."""
        hello = json.loads(line or "{}")
        if hello.get("token") != self.token:
            return False
        self.behind[writer] = {}
        if "relay" in hello:
            self.relays[writer] = hello["relay"]
        else:
            self._join(writer, (int(hello["hello"]),), line)
        return True

    def take(self, writer: Writer, line: bytes) -> None:
        """Handle a message of a connection."""
        if writer not in self.relays:
            self.receive(tuple(self.behind[writer]), line)
            return
        text, _, line = line.partition(b" ")
        ranks = from_ranges(text.decode())
        if line.startswith(b'{"hello"'):
            self._join(writer, ranks, line)
        elif line.startswith(b'{"gone"'):
            for rank in ranks:
                self.gone(rank, **json.loads(line)["gone"])
        else:
            self.receive(ranks, line)

    def _join(self, writer: Writer, ranks: Sequence[int], line: bytes) -> None:
        self._routes.clear()
        self.writers.update(dict.fromkeys(ranks, writer))
        self.behind[writer].update(dict.fromkeys(ranks))
        self.receive(ranks, line)

    def detach(self, writer: Writer) -> None:
        """Report the ranks of a connection that has ended."""
        name = self.relays.pop(writer, None)
        how = CRASHED if name is None else f"is cut off: the relay process of {name} {CRASHED}"
        lost = sorted(rank for rank in self.behind.pop(writer, ()) if self.writers.get(rank) is writer)
        for rank in lost:  # all of them before any is reported, since a report goes to the other ranks
            del self.writers[rank]
        for rank in lost:
            self.gone(rank, how)

    def gone(self, rank: int, how: str) -> None:
        """Note that a rank is not connected any more."""
        self._routes.clear()
        writer = self.writers.pop(rank, None)
        if writer in self.behind:
            self.behind[writer].pop(rank, None)
        if not self.writers:
            self.empty.set()

    def receive(self, ranks: Sequence[int], line: bytes) -> None:
        """Handle a message that these ranks have sent."""
        raise NotImplementedError

    def send(self, ranks: Sequence[int], line: bytes) -> None:
        """Send a message to ranks, except those that are gone: once to all ranks behind a relay."""
        for writer, front in self._route(ranks):
            if not writer.is_closing():
                writer.write(front + line)

    def _route(self, ranks: Sequence[int]) -> list[tuple[Writer, bytes]]:
        """Return the connections to ranks, each with the bytes in front of a message."""
        cached, route = self._routes.get(id(ranks), ((), []))
        if cached is ranks:
            return route
        by_relay: dict[Writer, list[int]] = {}
        route: list[tuple[Writer, bytes]] = []
        for rank in ranks:
            writer = self.writers.get(rank)
            if writer in self.relays:
                by_relay.setdefault(writer, []).append(rank)
            elif writer is not None:
                route.append((writer, b""))
        route += [(writer, f"{in_ranges(behind)} ".encode()) for writer, behind in by_relay.items()]
        if isinstance(ranks, tuple):  # others may change
            if len(self._routes) >= ROUTES:
                self._routes.clear()
            self._routes[id(ranks)] = ranks, route
        return route

    async def serve(self, host: str) -> int:
        """Accept connections, and return the port. `empty` is set once all have ended, or if none has come within
        JOINING."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(ValueError, OSError):  # some systems refuse their own limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        listening = await asyncio.start_server(self.connected, host, 0, limit=LINE, backlog=BACKLOG)
        asyncio.get_running_loop().call_later(JOINING, lambda: self.writers or self.empty.set())
        return listening.sockets[0].getsockname()[1]


class Relay(Connections):
    """A relay. `up` sends bytes to the parent, and `later` calls a function after some seconds.

    1. The messages of a rank arrive at the parent in the order in which the rank sent them, each once.
    2. Messages are as the ranks sent them: only equal bytes are put together.
    """

    def __init__(self, token: str, up: Callable[[bytes], object], later: Callable[[float, Callable[[], None]], object]):
        super().__init__(token)
        self.up = up
        self.later = later
        self._waiting: list[tuple[bytes, list[int]]] = []  # posts, with the ranks that sent them
        self._places: dict[bytes, int] = {}  # the last position of each post in these
        self._ends: dict[int, int] = {}  # by rank: the position after its last waiting post
        self._posted: dict[int, int] = {}  # the number of posts of each rank that is connected

    def receive(self, ranks: Sequence[int], line: bytes) -> None:
        """Forward a message, a post together with equal ones."""
        if not line.startswith(b'{"post"'):
            self.flush()
            self._forward(ranks, line)
            return
        at = self._places.get(line, -1)
        if at < max(self._ends.get(rank, 0) for rank in ranks):  # it would come before an earlier post of these ranks
            at = self._places[line] = len(self._waiting)
            self._waiting.append((line, []))
        self._waiting[at][1].extend(ranks)
        self._ends.update(dict.fromkeys(ranks, at + 1))
        for rank in ranks:
            self._posted[rank] += 1
        if min(self._posted.values()) >= self._posted[ranks[0]]:  # no rank is behind these
            self.flush()
        elif len(self._ends) == len(ranks):  # the first that wait
            self.later(HOLD, self.flush)

    def flush(self) -> None:
        """Forward the waiting posts."""
        waiting, self._waiting = self._waiting, []
        self._places.clear()
        self._ends.clear()
        for line, ranks in waiting:
            self._forward(ranks, line)

    def _forward(self, ranks: Sequence[int], line: bytes) -> None:
        self.up(f"{in_ranges(sorted(ranks))} ".encode() + line)

    def down(self, line: bytes) -> None:
        """Forward an answer of the parent to its ranks."""
        text, _, line = line.partition(b" ")
        self.send(from_ranges(text.decode()), line)

    def _join(self, writer: Writer, ranks: Sequence[int], line: bytes) -> None:
        self._posted.update(dict.fromkeys(ranks, 0))
        super()._join(writer, ranks, line)

    def gone(self, rank: int, how: str) -> None:
        """Report the end of a rank's connection."""
        super().gone(rank, how)
        self._posted.pop(rank, None)
        self.flush()
        self._forward((rank,), json.dumps({"gone": {"how": how}}).encode() + b"\n")


async def main(host: str, name: str, parent: str, port: str, token: str) -> None:
    """Relay the messages of the ranks `name`, until the last one or the parent has disconnected."""
    reader, writer = await asyncio.open_connection(parent, int(port), limit=LINE)
    relay = Relay(token, writer.write, asyncio.get_running_loop().call_later)
    writer.write(json.dumps({"relay": name, "token": token}).encode() + b"\n")
    print(json.dumps({"control": await relay.serve(host)}), flush=True)

    async def listen() -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                relay.down(line)

    ends = [asyncio.ensure_future(end) for end in (listen(), relay.empty.wait())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    with suppress(ConnectionError):
        writer.close()
        await writer.wait_closed()
    os._exit(0)


def run(host: str, name: str, parent: str, port: str) -> None:
    """Run a relay, whose token is on standard input."""
    asyncio.run(main(host, name, parent, port, sys.stdin.readline().strip()))
