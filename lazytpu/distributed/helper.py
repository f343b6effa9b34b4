"""The helper process of a job: XLA's coordination service, and the control plane's server, which compares collectives.

Rank 0 starts it, and it outlives all ranks: XLA aborts a process whose coordination service is gone. It exits when the
last rank has disconnected. It imports neither torch nor lazytpu's other rooms, which takes a second (see `starting`).
The control plane speaks JSON, one message a line. A rank says `hello`, and `bye` at a regular end. In between:

- `post`: the collectives that it is about to launch. When all members have posted the same one, they get `agreed`.
- `give_up`: it has waited too long. `fail`: it cannot launch what it has announced.
- `stuck`: an agreed collective does not end. The helper requests the `state` of all members; then the group is broken.
- `mail`: one end of a message. Both ends get the other's rank, or why there is no transfer. `withdraw` gives up.
- `seek`: it lacks a program. One rank per other cache folder, or the rank that compiles it, says whether it `has` it.
- `raised`: its script has ended with an exception, which is part of the errors of the other ranks.

A group is `broken` for good, and all members get the same text, when its members disagree, or one is lost or gives up.
Groups of the same ranks must post in one order, since they share XLA's connections. A late member gets `wanted`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

from lazytpu.distributed.comparison import Arbiter
from lazytpu.distributed.ledger import CRASHED, ENDED, Post
from lazytpu.distributed.mail import Mail, Mails
from lazytpu.distributed.relays import Connections

KEPT = 1 << 14  # posts that are kept parsed: a rank repeats those of its step, and most ranks send the same
HANDLED = ("give_up", "stuck", "answer", "fail", "mail", "withdraw", "seek", "has", "raised")


class Server(Connections):
    """The server of the control plane of a job of `size` ranks."""

    def __init__(self, size: int, token: str):
        super().__init__(token)
        self.size = size
        self.folders: dict[int, str] = {}
        self.arbiter = Arbiter(size, self.tell, self.later)
        self.mails = Mails(self.tell, self.arbiter.left, self.arbiter.where)
        self.sought: dict[tuple[int, str], set[int]] = {}  # (seeker, program): the ranks yet to answer
        self.last_words: dict[int, str] = {}  # the exceptions of ranks that raised
        self.ended: set[int] = set()  # ranks that said goodbye
        self._posts: dict[bytes, Post] = {}  # parsed messages

    def receive(self, ranks: Sequence[int], line: bytes) -> None:
        """Handle a message of ranks."""
        post = self._posts.get(line)
        if post is None:
            message = json.loads(line)
            if "post" not in message:
                for rank in ranks:
                    self._handle(rank, message)
                return
            if len(self._posts) >= KEPT:
                del self._posts[next(iter(self._posts))]
            post = self._posts[line] = Post.parsed(**message["post"])
        self.arbiter.post(ranks, post)

    def _handle(self, rank: int, message: Any) -> None:
        if "hello" in message:
            self.folders[rank] = message["folder"]
            self.tell([rank], {"welcome": self.size})
        for kind, arguments in message.items():
            if kind in HANDLED:
                getattr(self, kind)(rank, **arguments)
        if "bye" in message:
            self.ended.add(rank)
            self.leaves(rank, ENDED)

    def tell(self, ranks: Sequence[int], message: Any) -> None:
        """Send a message to ranks, except those that are gone."""
        self.send(ranks, json.dumps(message).encode() + b"\n")

    def later(self, seconds: float, call: Any) -> object:
        """Call a function after some seconds."""
        return asyncio.get_running_loop().call_later(seconds, call)

    # -- messages of ranks

    def give_up(self, rank: int, group: str, seconds: float) -> None:
        """See `Arbiter.give_up`."""
        self.arbiter.give_up(rank, group, seconds)

    def fail(self, rank: int, group: str, members: str, text: str) -> None:
        """See `Arbiter.fail`."""
        self.arbiter.fail(group, members, text)

    def stuck(self, rank: int, group: str, number: int, seconds: float, call: str) -> None:
        """See `Arbiter.stuck`."""
        self.arbiter.stuck(rank, group, number, seconds, call)

    def answer(self, rank: int, group: str, number: int, text: str) -> None:
        """See `Arbiter.answer`."""
        self.arbiter.answer(rank, group, text)

    def mail(self, rank: int, group: str, tag: int, **end: Any) -> None:
        """See `Mails.announce`."""
        mail = Mail(rank, **end)
        self.arbiter.at[rank] = str(mail)
        self.mails.announce(group, tag, mail)

    def withdraw(self, rank: int, number: int, seconds: float) -> None:
        """See `Mails.withdraw`."""
        self.mails.withdraw(rank, number, seconds)

    def seek(self, rank: int, name: str, of: int | None) -> None:
        """A rank lacks a program: ask the rank `of` for it, or with None one rank of each other cache folder."""
        candidates = {self.folders[candidate]: candidate for candidate in self.writers if of in (None, candidate)}
        if of is None:
            candidates.pop(self.folders[rank], None)
        self.sought[rank, name] = set(candidates.values())
        self.tell([*candidates.values()], {"seek": name, "by": rank})
        self._answer(rank, name, False)

    def has(self, rank: int, name: str, by: int, there: bool) -> None:
        """A rank answers a `seek` of rank `by`: whether it will share the program."""
        if (by, name) in self.sought:
            self.sought[by, name].discard(rank)
            self._answer(by, name, there)

    def _answer(self, by: int, name: str, there: bool) -> None:
        if there or not self.sought[by, name]:
            del self.sought[by, name]
            self.tell([by], {"sought": name, "there": there})

    def raised(self, rank: int, text: str) -> None:
        """Keep the exception of a rank for the errors of the other ranks, if its process then ends."""
        self.last_words[rank] = text

    def leaves(self, rank: int, how: str) -> None:
        """Note that a rank launches nothing more, so its groups cannot continue. Its process may take seconds to
        end."""
        self.mails.leaves(rank, how)
        self.arbiter.leaves(rank, how)

    def gone(self, rank: int, how: str) -> None:
        """Note that the connection of a rank has ended."""
        super().gone(rank, how)
        for by, name in list(self.sought):
            self.has(rank, name, by, False)
        if rank in self.ended:
            how = ENDED
        elif how == CRASHED and rank in self.last_words:
            how = f"raised {self.last_words[rank]}"
        self.leaves(rank, how)


def start_service(host: str, size: int) -> tuple[Any, str]:
    """Start XLA's coordination service for `size` processes on a free port of `host`; return it with its address."""
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]  # checked against jaxlib 0.10.2

    for attempt in range(8):
        with socket.socket() as probe:
            probe.bind((host, 0))
            address = f"{host}:{probe.getsockname()[1]}"
        try:
            # XLA's heartbeats would abort the survivors of a killed rank; `recoverable` lets them continue.
            service = _jax.get_distributed_runtime_service(
                address, size, heartbeat_timeout=10**6, shutdown_timeout=1, recoverable=True
            )
            return service, address
        except Exception:
            if attempt == 7:  # each time the port was free, and then taken
                raise
    raise AssertionError


async def main(host: str, size: int, token: str) -> None:
    """Serve a job until its last rank has disconnected, or no rank has connected within JOINING."""
    service, address = start_service(host, size)
    server = Server(size, token)
    print(json.dumps({"service": address, "control": await server.serve(host)}), flush=True)
    await server.empty.wait()
    del service
    os._exit(0)  # without the service's barrier, which would wait for processes that are gone


def run(host: str, size: str) -> None:
    """Serve a job, whose token is on standard input."""
    asyncio.run(main(host, int(size), sys.stdin.readline().strip()))
