"""The helper process of a job: XLA's coordination service, and the control plane that compares collectives.

Rank 0 starts it, and it outlives all ranks: a process ends at once when the service that its XLA client talks to is
gone. It ends by itself when the last rank has. It is run as a file, because a process that imports lazytpu imports
torch, which takes a second; so it imports nothing of lazytpu, and one name that is private to jaxlib.

The control plane speaks JSON, one message a line. A rank says `hello`, then `post`s the collectives that it is about to
launch, each of a group. When all members have posted the same, they are told that it is `agreed`. When theirs differ,
or one is gone or gives up waiting, or groups of the same ranks come in other orders (XLA has connections for them all,
on which order alone says what is what), the group is `broken`, for good: each member is told the same text. A member
that others wait for is told that it is `wanted`. When one is `stuck` in a collective that was agreed, all are asked for
their `state`, and the group is broken; so it is when a rank has to `fail`. Both ends of a message (`mail`) are told of
each other, or that they disagree, or that the other rank is gone or does not come. A rank may `seek` a program: one
rank with each other cache folder, or the one that makes it, says whether it `has` it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 0.05  # seconds before a member is told that others wait for it
ANSWER = 1.0  # seconds in which a member has to say how far it is
JOINING = 600.0  # seconds in which the first rank has to connect
LINE = 1 << 28  # bytes of one message: a cut may have thousands of collectives
SAID = ("post", "give_up", "stuck", "answer", "fail", "mail", "withdraw", "seek", "has")  # by a rank: methods below
CRASHED, ENDED = "was killed or crashed", "has ended"
RULE = "Every rank of a group has to call the same collectives, with equal dtypes and shapes, in the same order."

Posted = tuple[str, str, bool]


@dataclass(frozen=True)
class Mail:
    """A message that `rank` sends to another, or expects: `number` among all of its own, of `other` (None for anyone).
    `what` has to be equal at both ends, `shown` has the shapes and the source line."""

    rank: int
    number: int
    other: int | None
    sends: bool
    what: str
    shown: str

    def fits(self, other: Mail) -> bool:
        """Whether the two are the ends of one message."""
        return self.sends != other.sends and self.other in (None, other.rank) and other.other in (None, self.rank)

    def __str__(self) -> str:
        return f"rank {self.rank} {'sends' if self.sends else 'expects'} {self.shown}"


@dataclass
class Group:
    """The collectives of one group: all before number `agreed` were the same everywhere. `calls` has for each member
    what it posted from there on, as (signature, source line, whether it is launched). `orders` are the (group, number)
    of what each member launches and not all agree on, in its order, of all groups of these members."""

    members: list[int]
    orders: dict[int, deque[tuple[str, int]]]
    agreed: int = 0
    told: int = 0  # of these, as far as the members know
    calls: dict[int, deque[Posted]] = field(default_factory=dict[int, "deque[Posted]"])
    last: dict[int, str] = field(default_factory=dict[int, str])
    broken: str | None = None
    answers: dict[int, str] | None = None  # how far members are, while they are asked

    def missing(self) -> list[int]:
        """The members that have not posted what others have."""
        return [rank for rank in self.members if not self.calls[rank]] if any(self.calls.values()) else []


class Server:
    """The control plane of a job of `size` ranks. Whoever does not know the `token` is sent away."""

    def __init__(self, size: int, token: str):
        self.size = size
        self.token = token
        self.groups: dict[str, Group] = {}
        self.writers: dict[int, asyncio.StreamWriter] = {}
        self.left: dict[int, str] = {}
        self.folders: dict[int, str] = {}
        self.orders: dict[frozenset[int], dict[int, deque[tuple[str, int]]]] = {}  # by the members of groups
        self.mails: dict[tuple[str, int], list[Mail]] = {}  # by group and tag: those of which one end is there
        self.at: dict[int | None, str] = {}  # the last call of each rank, of all groups
        self.sought: dict[tuple[int, str], set[int]] = {}  # who seeks what: the ranks that have not answered
        self.empty = asyncio.Event()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        rank, how = None, CRASHED
        try:
            hello = json.loads(await reader.readline() or "{}")
            if hello.get("token") != self.token:
                return
            rank = int(hello["hello"])
            self.writers[rank], self.folders[rank] = writer, hello["folder"]
            self.send(rank, {"welcome": self.size})
            while line := await reader.readline():
                for kind, said in json.loads(line).items():
                    if kind == "bye":
                        how = ENDED
                        self.leaves(rank, how)
                    elif kind in SAID:
                        getattr(self, kind)(rank, **said)
        except (ConnectionError, ValueError):
            pass  # as if it had ended: what follows tells the others
        finally:
            writer.close()
            if rank is not None:
                self.gone(rank, how)

    def send(self, rank: int, message: Any) -> None:
        """Send a message to a rank that is still there."""
        writer = self.writers.get(rank)
        if writer is not None and not writer.is_closing():
            writer.write(json.dumps(message).encode() + b"\n")

    def post(self, rank: int, members: dict[str, list[int]], calls: list[tuple[str, str, str, bool]]) -> None:
        """A rank is about to launch these collectives, of a group each; the first time it says who the `members` are.
        Those of which nothing is launched have no order among those of other groups."""
        names = list(dict.fromkeys(name for name, *_ in calls))
        for name in names:
            found, said = self._group(name, members.get(name)), members.get(name)
            if found.broken is None and said not in (None, found.members):
                line = next(line for each, _, line, _ in calls if each == name)
                told = f"rank {rank}: {said} at {line}; others: {found.members}"
                self._break(name, found, f"the ranks disagree about the members of group {name!r}: {told}", cut=False)
            if found.broken is not None:
                self.send(rank, {"broken": name, "text": found.broken})
        for name, signature, line, launches in calls:
            found = self.groups[name]
            if found.broken is None:
                if launches:
                    found.orders[rank].append((name, found.agreed + len(found.calls[rank])))
                found.calls[rank].append((signature, line, launches))
                self.at[rank] = found.last[rank] = f"{signature} ({line})"
        self._compare(names)

    def _compare(self, names: Iterable[str]) -> None:
        """Tell who is in these groups what all agree on from now on, or that they do not."""
        groups = {name: group for name in names if (group := self.groups[name]).broken is None}
        while any(self._agrees(name, group) for name, group in groups.items()):
            pass
        for group in groups.values():
            self._compare_orders(group.orders)
        for name, group in groups.items():
            self._tell(name, group)
            if group.broken is None and any(group.calls.values()):
                asyncio.get_running_loop().call_later(PATIENCE, self._remind, name, group, group.agreed)

    def _tell(self, name: str, group: Group) -> None:
        """Tell all members of a group what they agree on."""
        if group.agreed > group.told:
            group.told = group.agreed
            for each in group.members:
                self.send(each, {"agreed": name, "count": group.agreed})

    def _agrees(self, name: str, group: Group) -> bool:
        """Whether one more collective of a group is the same on all its members, or it is broken now."""
        if group.broken is not None or not all(group.calls.values()):
            return False
        current = {each: group.calls[each][0] for each in group.members}
        if len({signature for signature, *_ in current.values()}) > 1:
            self._break(name, group, _disagreement(name, group.agreed, current), cut=False)
            return True
        launching = [group.orders[each] for each, (*_, launches) in current.items() if launches]
        if any(order[0] != (name, group.agreed) for order in launching):
            return False
        for waiting in (*launching, *group.calls.values()):
            waiting.popleft()
        group.agreed += 1
        return True

    def _compare_orders(self, orders: dict[int, deque[tuple[str, int]]]) -> None:
        """Break the groups of which members launch another one first."""
        first = {rank: order[0] for rank, order in orders.items() if order}
        if len(set(first.values())) > 1:
            calls = {rank: (name, self.groups[name].calls[rank][0]) for rank, (name, _) in first.items()}
            text = _other_orders(calls)
            for name in {name for name, _ in first.values()}:
                self._break(name, self.groups[name], text, cut=False)

    def _remind(self, group: str, found: Group, number: int) -> None:
        if found.agreed == number and found.broken is None:
            for rank in found.missing():
                self.send(rank, {"wanted": group, "number": number})

    def give_up(self, rank: int, group: str, seconds: float) -> None:
        """A rank has waited for the others as long as the timeout of the group says."""
        found = self.groups[group]
        lasts = {each: found.last.get(each, "none") for each in found.missing()}
        missing = [f"rank {each} (its last: {last}){self._at(each, last)}" for each, last in lasts.items()]
        if found.broken is None and missing and found.calls[rank]:
            signature, line, _ = found.calls[rank][0]
            text = (
                f"rank {rank} waited {seconds:g} s in collective {found.agreed} of group {group!r}, {signature} at "
                f"{line}, for {', '.join(missing)}. {RULE} Or the timeout of the process group is too short."
            )
            self._break(group, found, text)

    def _group(self, name: str, members: list[int] | None) -> Group:
        found = self.groups.get(name)
        if found is None:
            assert members is not None
            orders = self.orders.setdefault(frozenset(members), {each: deque() for each in members})
            found = self.groups[name] = Group(members, orders, calls={each: deque() for each in members})
            self._without_the_left(name, found)
        return found

    def fail(self, rank: int, group: str, members: list[int], text: str) -> None:
        """A rank will not launch what it has announced, or was to announce."""
        found = self._group(group, members)
        if found.broken is None:
            self._break(group, found, text)

    def stuck(self, rank: int, group: str, number: int, seconds: float, call: str) -> None:
        """A rank is in a collective for longer than the timeout of the group: ask the others how far they are."""
        found = self.groups.get(group)
        if found is None or found.broken is not None or found.answers is not None:
            return
        found.answers = {rank: "is in it"}
        for each in found.members:
            if each != rank:
                self.send(each, {"state": group, "number": number})
        start = f"rank {rank} is in collective {number} of group {group!r}, {call}, for {seconds:g} s"
        asyncio.get_running_loop().call_later(ANSWER, self._judge, group, found, start)

    def answer(self, rank: int, group: str, number: int, text: str) -> None:
        """A member says how far it is."""
        if (answers := self.groups[group].answers) is not None:
            answers[rank] = text

    def _judge(self, name: str, group: Group, start: str) -> None:
        answers, group.answers = group.answers or {}, None
        silent = "does not answer: it has stopped, or is cut off"
        others = [f"rank {each} {answers.get(each, silent)}" for each in group.members]
        if group.broken is None:
            self._break(name, group, f"{start}; {'; '.join(others[:64])}. Or the timeout of the group is too short.")

    def mail(self, rank: int, group: str, tag: int, **end: Any) -> None:
        """A rank sends or expects a message: tell it when the other end is there, too."""
        mine = Mail(rank, **end)
        self.at[rank] = str(mine)
        waiting = self.mails.setdefault((group, tag), [])
        other = next((each for each in waiting if mine.fits(each)), None)
        if other is not None:
            waiting.remove(other)
            text = "" if mine.what == other.what else f"the ranks disagree about a message: {mine}; {other}"
            for one, two in ((mine, other), (other, mine)):
                self.send(one.rank, {"mail": one.number, "with": two.rank, "text": text})
        elif mine.other in self.left:
            self._no_mail(mine, f"rank {mine.other} {self.left[mine.other]}: {mine}")
        else:
            waiting.append(mine)

    def withdraw(self, rank: int, number: int, seconds: float) -> None:
        """A rank has waited for the other end of a message for so long."""
        for waiting in self.mails.values():
            for each in [each for each in waiting if (each.rank, each.number) == (rank, number)]:
                waiting.remove(each)
                self._no_mail(each, f"the other end did not come within {seconds:g} s{self._at(each.other)}")

    def _at(self, rank: int | None, known: str = "") -> str:
        """Where a rank is that others wait for, unless they know."""
        return "" if (at := self.at.get(rank, known)) == known else f", which has come to: {at}"

    def _no_mail(self, mail: Mail, why: str) -> None:
        self.send(mail.rank, {"mail": mail.number, "with": -1, "text": why})

    def seek(self, rank: int, name: str, of: int | None) -> None:
        """A rank lacks a program: ask the rank `of` for it, or with None one rank with each other cache folder."""
        others = {self.folders[each]: each for each in self.writers if of in (None, each)}
        if of is None:
            others.pop(self.folders[rank], None)
        self.sought[rank, name] = set(others.values())
        for each in others.values():
            self.send(each, {"seek": name, "by": rank})
        self._answer(rank, name, False)

    def has(self, rank: int, name: str, by: int, there: bool) -> None:
        """A rank that was asked for a program has it, and gives it to the others, or has not."""
        if (by, name) in self.sought:
            self.sought[by, name].discard(rank)
            self._answer(by, name, there)

    def _answer(self, by: int, name: str, there: bool) -> None:
        if there or not self.sought[by, name]:
            del self.sought[by, name]
            self.send(by, {"sought": name, "there": there})

    def leaves(self, rank: int, how: str) -> None:
        """A rank will launch nothing more: its groups cannot go on. The end of its process may be seconds away."""
        self.left[rank] = how
        for waiting in self.mails.values():
            for each in [each for each in waiting if rank in (each.rank, each.other)]:
                waiting.remove(each)
                self._no_mail(each, f"rank {rank} {how}: {each}")
        for name, group in reversed(self.groups.items()):  # a group itself before its start, which tells less
            self._without_the_left(name, group)

    def gone(self, rank: int, how: str) -> None:
        """The connection of a rank has ended."""
        self.writers.pop(rank, None)
        for by, name in list(self.sought):
            self.has(rank, name, by, False)
        self.leaves(rank, how)
        if not self.writers:
            self.empty.set()

    def _without_the_left(self, name: str, group: Group) -> None:
        for rank, how in self.left.items():
            if rank in group.members and group.broken is None:
                where = f"after {group.last[rank]}" if rank in group.last else "before any collective of the group"
                text = f"rank {rank} {how}, {where}: group {name!r} cannot go on without it"
                self._break(name, group, text, cut=how != ENDED, quiet=how == ENDED)

    def _break(self, name: str, group: Group, text: str, cut: bool = True, quiet: bool = False) -> None:
        """`cut`: what runs in the group may never end. After a disagreement, what was agreed before it does, and so
        does what a rank took part in that has ended. That one is `quiet`: it is no fault if nothing more comes."""
        self._tell(name, group)  # first: what was agreed is launched on all ranks or on none
        group.broken = text
        freed: set[str] = set()
        for order in group.orders.values():
            kept = [each for each in order if each[0] != name]
            if len(kept) < len(order):
                order.clear()
                order.extend(kept)
                freed.update(each for each, _ in kept)
        if freed:  # what waited behind it on one rank may be the first of all now
            asyncio.get_running_loop().call_soon(self._compare, freed)
        for rank in group.members:
            self.send(rank, {"broken": name, "text": text, "cut": cut, "quiet": quiet})


def _other_orders(calls: dict[int, tuple[str, Posted]]) -> str:
    """What to tell every rank when collectives of groups of the same ranks come in other orders: the first on each."""
    told = "; ".join(
        f"rank {rank}: first {signature} at {line} in group {name!r}"
        for rank, (name, (signature, line, _)) in list(calls.items())[:8]
    )
    return (
        f"the ranks disagree about the order of groups with the same ranks: {told}. Such groups share connections: "
        "call their collectives in the same order on every rank, and not from several threads. Nothing was launched."
    )


def _disagreement(group: str, number: int, calls: dict[int, Posted]) -> str:
    """What to tell every rank: each different call, with the ranks and lines that made it."""
    told: list[str] = []
    for signature in dict.fromkeys(signature for signature, *_ in calls.values()):
        ranks = [rank for rank, call in calls.items() if call[0] == signature]
        shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        told.append(f"rank{'s' if len(ranks) > 1 else ''} {shown}: {signature} at {calls[ranks[0]][1]}")
    lines = "\n  ".join(told)
    return f"the ranks disagree about collective {number} of group {group!r}:\n  {lines}\n{RULE} Nothing was launched."


def start_service(host: str, size: int) -> tuple[Any, str]:
    """XLA's coordination service for `size` processes, on a free port of `host`, and its address."""
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]  # checked against jaxlib 0.10.2

    for attempt in range(8):
        with socket.socket() as probe:
            probe.bind((host, 0))
            address = f"{host}:{probe.getsockname()[1]}"
        try:
            # Heartbeats would end the survivors of a killed rank by an abort; `recoverable` lets them live.
            service = _jax.get_distributed_runtime_service(
                address, size, heartbeat_timeout=10**6, shutdown_timeout=1, recoverable=True
            )
            return service, address
        except Exception:
            if attempt == 7:  # the port was free, and then taken, each time
                raise
    raise AssertionError


async def main(host: str, size: int, token: str) -> None:
    """Serve a job; returns when its last rank has ended, or when none has come."""
    service, address = start_service(host, size)
    server = Server(size, token)
    listening = await asyncio.start_server(server.connected, host, 0, limit=LINE)
    print(json.dumps({"service": address, "control": listening.sockets[0].getsockname()[1]}), flush=True)
    deadline = asyncio.get_running_loop().call_later(JOINING, lambda: server.writers or server.empty.set())
    await server.empty.wait()
    deadline.cancel()
    del service
    os._exit(0)  # without the service's barrier for processes that are gone


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.stdin.readline().strip()))
