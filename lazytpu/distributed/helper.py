"""The helper process of a job: XLA's coordination service, and the control plane's server, which compares collectives.

Rank 0 starts it, and it outlives all ranks: XLA aborts a process whose coordination service is gone. It exits when the
last rank has disconnected. It runs as a file, without lazytpu and torch, whose import takes a second. The control plane
speaks JSON, one message a line. A rank says `hello`, and `bye` at a regular end. In between:

- `post`: the collectives that it is about to launch. When all members have posted the same one, they get `agreed`.
- `give_up`: it has waited too long. `fail`: it cannot launch what it has announced.
- `stuck`: an agreed collective does not end. The helper requests the `state` of all members; then the group is broken.
- `mail`: one end of a message. Both ends get the other's rank, or why there is no transfer. `withdraw` gives up.
- `seek`: it lacks a program. One rank per other cache folder, or the rank that compiles it, says whether it `has` it.

A group is `broken` for good, and all members get the same text, when its members disagree, or one is lost or gives up.
Groups of the same ranks must post in one order, since they share XLA's connections. A late member gets `wanted`.
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

PATIENCE = 0.05  # seconds before a member is notified that others wait for it
ANSWER = 1.0  # seconds in which a member has to report its state
JOINING = 600.0  # seconds in which the first rank has to connect
LINE = 1 << 28  # bytes of one message: a cut may have thousands of collectives
METHODS = ("post", "give_up", "stuck", "answer", "fail", "mail", "withdraw", "seek", "has")  # handled by these methods
CRASHED, ENDED = "was killed or crashed", "has ended"
RULE = "Every rank of a group has to call the same collectives, with equal dtypes and shapes, in the same order."

Posted = tuple[str, str, bool]


@dataclass(frozen=True)
class Mail:
    """One end of a message: `rank` sends it, or expects it as its message `number`, from or to the rank `other`; None
    accepts any sender. `what` must be equal at both ends; `shown` has the shapes and the source line."""

    rank: int
    number: int
    other: int | None
    sends: bool
    what: str
    shown: str

    def fits(self, other: Mail) -> bool:
        """Return whether this and `other` are the two ends of one message."""
        return self.sends != other.sends and self.other in (None, other.rank) and other.other in (None, self.rank)

    def __str__(self) -> str:
        return f"rank {self.rank} {'sends' if self.sends else 'expects'} {self.shown}"


@dataclass
class Group:
    """The state of a group. Its first `agreed` collectives were posted by all members with equal signatures. Of each
    member, `calls` has the posted collectives that are not agreed yet, as (signature, source line, whether launched);
    `orders` has its launches that are not agreed yet, as (group, number), over all groups of the same members; `last`
    has its last posted collective, as text."""

    members: list[int]
    orders: dict[int, deque[tuple[str, int]]]
    agreed: int = 0
    reported: int = 0  # the part of `agreed` of which the members were notified
    calls: dict[int, deque[Posted]] = field(default_factory=dict[int, "deque[Posted]"])
    last: dict[int, str] = field(default_factory=dict[int, str])
    broken: str | None = None
    answers: dict[int, str] | None = None  # the members' states, while these are being asked for

    def missing(self) -> list[int]:
        """Return the members that have posted nothing, if another member waits."""
        return [rank for rank in self.members if not self.calls[rank]] if any(self.calls.values()) else []


class Server:
    """The server of the control plane of a job of `size` ranks. A connection without the `token` is closed."""

    def __init__(self, size: int, token: str):
        self.size = size
        self.token = token
        self.groups: dict[str, Group] = {}
        self.writers: dict[int, asyncio.StreamWriter] = {}
        self.left: dict[int, str] = {}
        self.folders: dict[int, str] = {}
        self.orders: dict[frozenset[int], dict[int, deque[tuple[str, int]]]] = {}  # by the members of groups
        self.mails: dict[tuple[str, int], list[Mail]] = {}  # by group and tag: the ends that wait for their other end
        self.at: dict[int | None, str] = {}  # the last call of each rank, over all groups
        self.sought: dict[tuple[int, str], set[int]] = {}  # (seeker, program): the ranks yet to answer
        self.empty = asyncio.Event()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        rank, ending = None, CRASHED
        try:
            hello = json.loads(await reader.readline() or "{}")
            if hello.get("token") != self.token:
                return
            rank = int(hello["hello"])
            self.writers[rank], self.folders[rank] = writer, hello["folder"]
            self.send(rank, {"welcome": self.size})
            while line := await reader.readline():
                for kind, arguments in json.loads(line).items():
                    if kind == "bye":
                        ending = ENDED
                        self.leaves(rank, ending)
                    elif kind in METHODS:
                        getattr(self, kind)(rank, **arguments)
        except (ConnectionError, ValueError):
            pass  # treated like the end of the connection
        finally:
            writer.close()
            if rank is not None:
                self.gone(rank, ending)

    def send(self, rank: int, message: Any) -> None:
        """Send a message to a rank, unless it is gone."""
        writer = self.writers.get(rank)
        if writer is not None and not writer.is_closing():
            writer.write(json.dumps(message).encode() + b"\n")

    def post(self, rank: int, members: dict[str, list[int]], calls: list[tuple[str, str, str, bool]]) -> None:
        """Compare collectives that a rank is about to launch. `members` has the ranks of groups that are new here.
        Calls that launch nothing are not ordered relative to other groups."""
        names = list(dict.fromkeys(name for name, *_ in calls))
        for name in names:
            group, ranks = self._group(name, members.get(name)), members.get(name)
            if group.broken is None and ranks not in (None, group.members):
                line = next(line for called, _, line, _ in calls if called == name)
                listed = f"rank {rank}: {ranks} at {line}; others: {group.members}"
                self._break(name, group, f"the ranks disagree about the members of group {name!r}: {listed}", cut=False)
            if group.broken is not None:
                self.send(rank, {"broken": name, "text": group.broken})
        for name, signature, line, launches in calls:
            group = self.groups[name]
            if group.broken is None:
                if launches:
                    group.orders[rank].append((name, group.agreed + len(group.calls[rank])))
                group.calls[rank].append((signature, line, launches))
                self.at[rank] = group.last[rank] = f"{signature} ({line})"
        self._compare(names)

    def _compare(self, names: Iterable[str]) -> None:
        """Notify the members of these groups of the collectives that are agreed now, or break the groups."""
        groups = {name: group for name in names if (group := self.groups[name]).broken is None}
        while any(self._agrees(name, group) for name, group in groups.items()):
            pass
        for group in groups.values():
            self._compare_orders(group.orders)
        for name, group in groups.items():
            self._report_agreed(name, group)
            if group.broken is None and any(group.calls.values()):
                asyncio.get_running_loop().call_later(PATIENCE, self._remind, name, group, group.agreed)

    def _report_agreed(self, name: str, group: Group) -> None:
        """Notify all members of a group of its agreed collectives."""
        if group.agreed > group.reported:
            group.reported = group.agreed
            for rank in group.members:
                self.send(rank, {"agreed": name, "count": group.agreed})

    def _agrees(self, name: str, group: Group) -> bool:
        """Advance a group by a collective that all members have posted, or break it if they differ; whether it did."""
        if group.broken is not None or not all(group.calls.values()):
            return False
        current = {rank: group.calls[rank][0] for rank in group.members}
        if len({signature for signature, *_ in current.values()}) > 1:
            self._break(name, group, _disagreement(name, group.agreed, current), cut=False)
            return True
        launching = [group.orders[rank] for rank, (*_, launches) in current.items() if launches]
        if any(order[0] != (name, group.agreed) for order in launching):
            return False
        for waiting in (*launching, *group.calls.values()):
            waiting.popleft()
        group.agreed += 1
        return True

    def _compare_orders(self, orders: dict[int, deque[tuple[str, int]]]) -> None:
        """Break the groups whose members launch collectives of different groups first."""
        first = {rank: order[0] for rank, order in orders.items() if order}
        if len(set(first.values())) > 1:
            calls = {rank: (name, self.groups[name].calls[rank][0]) for rank, (name, _) in first.items()}
            text = _other_orders(calls)
            for name in {name for name, _ in first.values()}:
                self._break(name, self.groups[name], text, cut=False)

    def _remind(self, group: str, state: Group, number: int) -> None:
        if state.agreed == number and state.broken is None:
            for rank in state.missing():
                self.send(rank, {"wanted": group, "number": number})

    def give_up(self, rank: int, group: str, seconds: float) -> None:
        """A rank has waited for the others as long as the timeout of the group."""
        state = self.groups[group]
        lasts = {late: state.last.get(late, "none") for late in state.missing()}
        missing = [f"rank {late} (its last: {last}){self._at(late, last)}" for late, last in lasts.items()]
        if state.broken is None and missing and state.calls[rank]:
            signature, line, _ = state.calls[rank][0]
            text = (
                f"rank {rank} waited {seconds:g} s in collective {state.agreed} of group {group!r}, {signature} at "
                f"{line}, for {', '.join(missing)}. {RULE} Or the timeout of the process group is too short."
            )
            self._break(group, state, text)

    def _group(self, name: str, members: list[int] | None) -> Group:
        group = self.groups.get(name)
        if group is None:
            assert members is not None
            orders = self.orders.setdefault(frozenset(members), {rank: deque() for rank in members})
            group = self.groups[name] = Group(members, orders, calls={rank: deque() for rank in members})
            self._without_the_left(name, group)
        return group

    def fail(self, rank: int, group: str, members: list[int], text: str) -> None:
        """A rank will not launch a collective that it has announced, or was about to."""
        state = self._group(group, members)
        if state.broken is None:
            self._break(group, state, text)

    def stuck(self, rank: int, group: str, number: int, seconds: float, call: str) -> None:
        """A rank has been in a collective longer than the group's timeout: ask the other members for their states."""
        state = self.groups.get(group)
        if state is None or state.broken is not None or state.answers is not None:
            return
        state.answers = {rank: "is in it"}
        for member in state.members:
            if member != rank:
                self.send(member, {"state": group, "number": number})
        start = f"rank {rank} is in collective {number} of group {group!r}, {call}, for {seconds:g} s"
        asyncio.get_running_loop().call_later(ANSWER, self._judge, group, state, start)

    def answer(self, rank: int, group: str, number: int, text: str) -> None:
        """A member reports its state."""
        if (answers := self.groups[group].answers) is not None:
            answers[rank] = text

    def _judge(self, name: str, group: Group, start: str) -> None:
        answers, group.answers = group.answers or {}, None
        silent = "does not answer: it has stopped, or is cut off"
        states = [f"rank {rank} {answers.get(rank, silent)}" for rank in group.members]
        if group.broken is None:
            self._break(name, group, f"{start}; {'; '.join(states[:64])}. Or the timeout of the group is too short.")

    def mail(self, rank: int, group: str, tag: int, **end: Any) -> None:
        """A rank announces one end of a message: match it with the other end, or keep it until that arrives."""
        mine = Mail(rank, **end)
        self.at[rank] = str(mine)
        waiting = self.mails.setdefault((group, tag), [])
        match = next((candidate for candidate in waiting if mine.fits(candidate)), None)
        if match is not None:
            waiting.remove(match)
            text = "" if mine.what == match.what else f"the ranks disagree about a message: {mine}; {match}"
            for receiver, peer in ((mine, match), (match, mine)):
                self.send(receiver.rank, {"mail": receiver.number, "with": peer.rank, "text": text})
        elif mine.other in self.left:
            self._no_mail(mine, f"rank {mine.other} {self.left[mine.other]}: {mine}")
        else:
            waiting.append(mine)

    def withdraw(self, rank: int, number: int, seconds: float) -> None:
        """A rank has waited for the other end of a message for so long."""
        for waiting in self.mails.values():
            for end in [end for end in waiting if (end.rank, end.number) == (rank, number)]:
                waiting.remove(end)
                self._no_mail(end, f"the other end did not come within {seconds:g} s{self._at(end.other)}")

    def _at(self, rank: int | None, known: str = "") -> str:
        """Return a rank's last call for an error's text; empty if it equals `known`, which that text has already."""
        return "" if (at := self.at.get(rank, known)) == known else f", which has come to: {at}"

    def _no_mail(self, mail: Mail, why: str) -> None:
        self.send(mail.rank, {"mail": mail.number, "with": -1, "text": why})

    def seek(self, rank: int, name: str, of: int | None) -> None:
        """A rank lacks a program: ask the rank `of` for it, or with None one rank of each other cache folder."""
        candidates = {self.folders[candidate]: candidate for candidate in self.writers if of in (None, candidate)}
        if of is None:
            candidates.pop(self.folders[rank], None)
        self.sought[rank, name] = set(candidates.values())
        for candidate in candidates.values():
            self.send(candidate, {"seek": name, "by": rank})
        self._answer(rank, name, False)

    def has(self, rank: int, name: str, by: int, there: bool) -> None:
        """A rank answers a `seek` of rank `by`: whether it will share the program."""
        if (by, name) in self.sought:
            self.sought[by, name].discard(rank)
            self._answer(by, name, there)

    def _answer(self, by: int, name: str, there: bool) -> None:
        if there or not self.sought[by, name]:
            del self.sought[by, name]
            self.send(by, {"sought": name, "there": there})

    def leaves(self, rank: int, how: str) -> None:
        """A rank launches nothing more, so its groups cannot continue. Its process may take seconds to end."""
        self.left[rank] = how
        for waiting in self.mails.values():
            for end in [end for end in waiting if rank in (end.rank, end.other)]:
                waiting.remove(end)
                self._no_mail(end, f"rank {rank} {how}: {end}")
        for name, group in reversed(self.groups.items()):  # a group before its start, whose text has fewer details
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
        """Break a group for good. `cut`: its running collectives may never end; after a disagreement, or a regular end
        of a rank, the agreed ones do. `quiet`: the regular end of a rank, which is no fault unless more is called."""
        self._report_agreed(name, group)  # first, so that an agreed collective is launched by all ranks
        group.broken = text
        freed: set[str] = set()
        for order in group.orders.values():
            remaining = [launch for launch in order if launch[0] != name]
            if len(remaining) < len(order):
                order.clear()
                order.extend(remaining)
                freed.update(launch for launch, _ in remaining)
        if freed:  # for some rank, the collective behind it may be the first one now
            asyncio.get_running_loop().call_soon(self._compare, freed)
        for rank in group.members:
            self.send(rank, {"broken": name, "text": text, "cut": cut, "quiet": quiet})


def _other_orders(calls: dict[int, tuple[str, Posted]]) -> str:
    """Return the error when groups of the same ranks come in different orders. `calls` has each rank's first call."""
    listed = "; ".join(
        f"rank {rank}: first {signature} at {line} in group {name!r}"
        for rank, (name, (signature, line, _)) in list(calls.items())[:8]
    )
    return (
        f"the ranks disagree about the order of groups with the same ranks: {listed}. Such groups share connections: "
        "call their collectives in the same order on every rank, and not from several threads. Nothing was launched."
    )


def _disagreement(group: str, number: int, calls: dict[int, Posted]) -> str:
    """Return the error for different calls: each distinct call, with its ranks and a source line."""
    listed = [f"the ranks disagree about collective {number} of group {group!r}:"]
    for signature in dict.fromkeys(signature for signature, *_ in calls.values()):
        ranks = [rank for rank, call in calls.items() if call[0] == signature]
        shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        listed.append(f"rank{'s' if len(ranks) > 1 else ''} {shown}: {signature} at {calls[ranks[0]][1]}")
    return "\n  ".join(listed) + f"\n{RULE} Nothing was launched."


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
    listening = await asyncio.start_server(server.connected, host, 0, limit=LINE)
    print(json.dumps({"service": address, "control": listening.sockets[0].getsockname()[1]}), flush=True)
    deadline = asyncio.get_running_loop().call_later(JOINING, lambda: server.writers or server.empty.set())
    await server.empty.wait()
    deadline.cancel()
    del service
    os._exit(0)  # without the service's barrier, which would wait for processes that are gone


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.stdin.readline().strip()))
