"""A simulation of ranks that launch the collectives of random programs, and ask the helper process before.

Ranks, devices and connections take steps in random order; a connection keeps the order of its messages. The server, its
arbiter and the relays are the real ones. Each rank cuts its program at places of its own, has the program of a cut or
lacks it, and may call a collective that differs, be late, or die at any time. Relays may die, too.

The device of a rank runs its launches one after the other. A launch is one collective or the program of a whole cut; it
ends once the devices of all members run it, and all ranks must launch a collective in the same way. The program of a
cut among different ranks runs on all ranks of the job.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from lazytpu.distributed.comparison import Arbiter
from lazytpu.distributed.ledger import in_ranges
from lazytpu.distributed.relays import Connections, Relay
from tests.distributed.simulated_links import Link, SimulatedServer

AHEAD = 4  # cuts that a rank may post before the first of them is launched
MANY = 1000  # ranks of a job whose steps are taken in fewer rounds
Place = tuple[str, int]
"""A group, and the number of a collective in it."""


class ProtocolError(AssertionError):
    """Ranks were about to launch different programs, or wait for each other."""


@dataclass(frozen=True)
class Cut:
    """A cut of a rank: its collectives, as (group, signature), and its mark."""

    calls: tuple[tuple[str, str], ...]
    mark: str


@dataclass(eq=False)
class Launch:
    """A launch: the collectives in it, and the mark of the whole cut; "" for a single collective. `size` ranks take
    part, of which `arrived` run it."""

    places: tuple[Place, ...]
    mark: str
    size: int
    arrived: list[Rank] = field(default_factory=list["Rank"])


@dataclass(eq=False)
class Rank:
    """A simulated rank. Its cuts from number `cut` on are still to be posted, and `posted` has those that are not
    launched yet, with the places of their collectives. `up` is its connection to the server or a relay."""

    number: int
    cuts: Sequence[Cut]
    up: Link
    cut: int = 0
    posted: list[tuple[Cut, tuple[Place, ...]]] = field(default_factory=list[Any])
    launches: list[Launch] = field(default_factory=list[Launch])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    agreed: dict[str, int] = field(default_factory=dict[str, int])
    whole: set[Place] = field(default_factory=set[Place])
    broken: set[str] = field(default_factory=set[str])
    state: str = "runs"
    asked: int = 0  # collectives of the first posted cut that are launched by themselves
    is_ready: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it has ended in some way."""
        return self.state != "runs"


@lru_cache(maxsize=1 << 16)
def _encoded(cut: Cut, members: tuple[tuple[str, str], ...]) -> bytes:
    calls = [(name, signature, "train.py:1") for name, signature in cut.calls]
    marked = {"mark": cut.mark} if cut.mark else {}
    return json.dumps({"post": {"members": dict(members), "calls": calls, **marked, "about": "a cut"}}).encode() + b"\n"


_decoded = lru_cache(maxsize=1 << 10)(json.loads)


class Simulation:
    """The ranks of a job with these programs, by rank, and groups by name. `make` creates the arbiter, and `relay` a
    relay of at most `fan_in` connections, if there are more ranks. `deaths` has ranks that die, and `late` ranks that
    start when the others wait. The first `dead_relays` relays die."""

    def __init__(
        self,
        seed: int,
        groups: dict[str, tuple[int, ...]],
        programs: Sequence[Sequence[Cut]],
        make: Callable[..., Arbiter] = Arbiter,
        deaths: Iterable[int] = (),
        *,
        late: Iterable[int] = (),
        fan_in: int | None = None,
        relay: Callable[..., Relay] = Relay,
        dead_relays: int = 0,
    ):
        self.random = random.Random(seed)
        self.groups = groups
        self.members = {name: frozenset(ranks) for name, ranks in groups.items()}
        self.ranges = {name: in_ranges(ranks) for name, ranks in groups.items()}
        self.doomed = set(deaths)
        self.lost: set[int] = set()
        self.ready: list[Callable[[], bool]] = []  # steps that can be taken
        self.timers: list[Callable[[], None]] = []
        self.holds: list[Callable[[], None]] = []  # timers of relays
        self.launched: Counter[str] = Counter()  # the cuts that ended: "whole", of these "wide" ones, and "pieces"
        self.running = 0
        self._launches: dict[tuple[str, tuple[Place, ...], tuple[tuple[str, str], ...]], Launch] = {}
        self._wide: dict[str, Launch] = {}  # by mark: the program of all ranks that some run
        # How the first rank launched each collective: the mark, and the calls of the same members at their places.
        self._answers: dict[Place, tuple[str, tuple[tuple[Place, str], ...]]] = {}
        self.server = SimulatedServer(len(programs), make, self.timers)
        self.relays: list[Relay] = []
        self.ends: list[tuple[Link, list[Link]]] = []  # of each relay: its connection to the parent, and from children
        self.ranks: list[Rank] = []
        self._connect(programs, fan_in, relay)
        while self.ready:  # all ranks have joined before the first one posts
            step = self.ready.pop()
            while step():
                pass
        self.doomed_relays = list(range(dead_relays))
        self.late = set(late)
        for rank in self.ranks:
            if rank.number not in self.late:
                self._wake(rank)

    def _connect(self, programs: Sequence[Sequence[Cut]], fan_in: int | None, make: Callable[..., Relay]) -> None:
        """Create the ranks, and the levels of relays above them."""
        size, spans = len(programs), list[int]()
        while fan_in is not None and size > fan_in * (spans[-1] if spans else 1):
            spans.append(fan_in * (spans[-1] if spans else 1))
        above: dict[int, int] = {}  # by first rank: the relay of the level above
        for i, span in enumerate(reversed(spans)):
            level: dict[int, int] = {}
            for first in range(0, size, span):
                parent = above[first // spans[-i] * spans[-i]] if i else None
                level[first] = len(self.relays)
                self._add_relay(parent, f"ranks {first} to {first + span - 1}", make)
            above = level
        for number, cuts in enumerate(programs):
            up = Link(self.ready, lambda line: None)
            rank = Rank(number, cuts, up)
            down = Link(self.ready, lambda line, rank=rank: self._receive(rank, line))
            self._link(above[number // spans[0] * spans[0]] if spans else None, up, down)
            up.write(json.dumps({"hello": number, "token": "token", "folder": ""}).encode() + b"\n")
            self.ranks.append(rank)
        self.running = size

    def _add_relay(self, parent: int | None, name: str, make: Callable[..., Relay]) -> None:
        number, up = len(self.relays), Link(self.ready, lambda line: None)
        relay = make("token", up.write, lambda seconds, call: self.holds.append(call))
        down = Link(self.ready, lambda line: self._end_relay(number) if line is None else relay.down(line))
        self.relays.append(relay)
        self.ends.append((up, []))
        self._link(parent, up, down)
        up.write(json.dumps({"relay": name, "token": "token"}).encode() + b"\n")

    def _link(self, parent: int | None, up: Link, down: Link) -> None:
        """Connect both directions to a relay or the server."""
        above: Connections = self.server if parent is None else self.relays[parent]

        def take(line: bytes | None) -> None:
            if parent is not None and self.ends[parent][0].closed:
                return
            if line is None:
                above.detach(down)
            elif down in above.behind:
                above.take(down, line)
            else:
                above.attach(down, line)

        up.take = take
        if parent is not None:
            self.ends[parent][1].append(down)

    def _end_relay(self, number: int) -> None:
        """End a relay: its connections close in both directions."""
        up, children = self.ends[number]
        for link in (up, *children):
            link.write(None)

    def run(self) -> None:
        """Take steps until all ranks have ended. Raises ProtocolError."""
        draw = self.random.random
        share = 0.8 if len(self.ranks) > MANY else 0.5
        while self.running:
            steps = self.ready[:]
            self.ready.clear()
            if len(steps) < MANY:
                self.random.shuffle(steps)
            elif draw() < 0.5:
                steps.reverse()
            for step in steps:
                if draw() > share or step():
                    self.ready.append(step)
            if self.holds and (not self.ready or draw() < 0.3):
                some, self.holds[:] = self.holds[:], []
                for call in some:
                    self.holds.append(call) if self.ready and draw() < 0.5 else call()
            if self.timers and draw() < 0.005:
                self.timers.pop(self.random.randrange(len(self.timers)))()
            if self.doomed_relays and draw() < 0.02:
                self._end_relay(self.doomed_relays.pop())
            if not (self.ready or self.holds) and self.running and not self._go_on():
                waiting = {rank.number: rank.launches[:1] or rank.posted[:1] for rank in self.ranks if not rank.is_over}
                raise ProtocolError(f"all ranks wait: {list(waiting.items())[:8]}")

    def _go_on(self) -> bool:
        """Let something happen while all ranks wait. Return whether anything did."""
        stuck = [rank for rank in self.ranks if not rank.is_over and self._is_cut_off(rank)]
        for rank in stuck:
            self._give_up(rank, "raised")
        late, self.late = self.late, set()
        for number in late:
            self._wake(self.ranks[number])
        doomed = [rank for rank in map(self.ranks.__getitem__, self.doomed) if not rank.is_over]
        for rank in doomed:
            self._give_up(rank, "died")
        if stuck or late or doomed:
            return True
        if self.timers:
            self.timers.pop(self.random.randrange(len(self.timers)))()
            return True
        return False

    def _wake(self, rank: Rank) -> None:
        if not (rank.is_ready or rank.is_over):
            rank.is_ready = True
            self.ready.append(lambda: self._step(rank))

    # -- steps of one rank: each returns whether something happened

    def _step(self, rank: Rank) -> bool:
        if rank.number in self.doomed and self.random.random() < 0.05:
            self._give_up(rank, "died")
        first, second = (self._launch, self._post) if self.random.random() < 0.5 else (self._post, self._launch)
        moved = not rank.is_over and any((first(rank), second(rank)))
        if not rank.is_over and rank.cut == len(rank.cuts) and not rank.posted and not rank.launches:
            rank.up.write(json.dumps({"bye": rank.number}).encode() + b"\n")
            self._end(rank, "ended")
        rank.is_ready = moved
        return moved

    def _receive(self, rank: Rank, line: bytes | None) -> None:
        """Take a message of the server; None if its connection has ended."""
        if rank.is_over:
            return
        if line is None:
            self._give_up(rank, "raised")
            return
        message = _decoded(line)
        if "agreed" in message:
            group, count = message["agreed"], message["count"]
            if not rank.agreed.get(group, 0) < count <= rank.counts.get(group, 0):
                raise ProtocolError(f"rank {rank.number}: {message} after {rank.agreed} of {rank.counts}")
            rank.agreed[group] = count
            rank.whole.update((group, place) for place in message.get("whole", ()))
        elif "broken" in message:
            rank.broken.add(message["broken"])
            if self._is_cut_off(rank):
                self._give_up(rank, "raised")
        else:
            return
        self._wake(rank)

    def _post(self, rank: Rank) -> bool:
        if rank.cut == len(rank.cuts) or len(rank.posted) >= AHEAD:
            return False
        cut = rank.cuts[rank.cut]
        rank.cut += 1
        new = tuple((name, self.ranges[name]) for name in dict(cut.calls) if name not in rank.counts)
        rank.up.write(_encoded(cut, new))
        places: list[Place] = []
        for name, _ in cut.calls:
            places.append((name, rank.counts.get(name, 0)))
            rank.counts[name] = places[-1][1] + 1
        rank.posted.append((cut, tuple(places)))
        return True

    def _launch(self, rank: Rank) -> bool:
        """Launch what is agreed of the first posted cut."""
        if not rank.posted:
            return False
        cut, places = rank.posted[0]
        name, place = places[rank.asked]
        if rank.agreed.get(name, 0) <= place:
            if name in rank.broken:
                self._give_up(rank, "raised")
            return name in rank.broken
        if cut.mark and not rank.asked and (name, place) in rank.whole:
            launch = self._launch_of(places, cut.calls, cut.mark)
            rank.asked = len(places)
            self.launched["whole"] += 1
            if len({self.members[name] for name, _ in places}) > 1:
                self.launched["wide"] += 1
        else:
            launch = self._launch_of((places[rank.asked],), (cut.calls[rank.asked],), "")
            rank.asked += 1
            if rank.asked == len(places):
                self.launched["pieces"] += 1
        rank.launches.append(launch)
        if len(rank.launches) == 1:
            self._arrive(rank)
        if rank.asked == len(places):
            rank.posted.pop(0)
            rank.asked = 0
        return True

    def _launch_of(self, places: tuple[Place, ...], calls: tuple[tuple[str, str], ...], mark: str) -> Launch:
        """Return the launch of the calls at some places, which all members of their groups must launch in the same way
        and order."""
        launch = self._launches.get((mark, places, calls))
        if launch is None:
            parts: dict[frozenset[int], list[tuple[Place, str]]] = {}
            for place, (name, signature) in zip(places, calls, strict=True):
                parts.setdefault(self.members[name], []).append((place, signature))
            for part in parts.values():
                answer = mark, tuple(part)
                for place, _ in part:
                    if self._answers.setdefault(place, answer) != answer:
                        raise ProtocolError(f"{place} is launched as {answer} and {self._answers[place]}")
            launch = self._launches[mark, places, calls] = Launch(places, mark, len(self.groups[places[0][0]]))
            if len(parts) > 1:
                launch.size = len(self.ranks)
        return launch

    def _arrive(self, rank: Rank) -> None:
        """Let the device of a rank run its first launch, which ends when all devices do."""
        if self._is_cut_off(rank):
            self._give_up(rank, "raised")
            return
        launch = rank.launches[0]
        if len({self.members[name] for name, _ in launch.places}) > 1:
            launch = self._wide.setdefault(launch.mark, Launch((), launch.mark, len(self.ranks)))
        launch.arrived.append(rank)
        if len(launch.arrived) == launch.size:
            self._wide.pop(launch.mark, None) if not launch.places else None
            self.ready.append(lambda: self._finish(launch))

    def _finish(self, launch: Launch) -> bool:
        parts: dict[str, list[Place]] = {}
        for rank in launch.arrived:
            places = rank.launches[0].places
            for name in dict(places):
                part = [place for place in places if place[0] == name]
                if parts.setdefault(name, part) != part:
                    raise ProtocolError(f"rank {rank.number} runs {part}, another one {parts[name]}")
        if not any(rank.is_over for rank in launch.arrived):
            for rank in launch.arrived:
                rank.launches.pop(0)
                self._arrive(rank) if rank.launches else self._wake(rank)
        return False

    def _is_cut_off(self, rank: Rank) -> bool:
        """Return whether a rank's device runs a launch that a lost rank will not run."""
        names = {name for name, _ in rank.launches[0].places} if rank.launches and rank.broken else set[str]()
        return any(name in rank.broken and not self.lost.isdisjoint(self.members[name]) for name in names)

    def _give_up(self, rank: Rank, state: str) -> None:
        """Let a rank die or raise, perhaps after it has given up its collectives."""
        self.doomed.discard(rank.number)
        self.lost.add(rank.number)
        names = dict.fromkeys(name for _, places in rank.posted for name, _ in places)
        for name in names if self.random.random() < 0.5 else ():
            failed = {"group": name, "members": self.ranges[name], "text": f"rank {rank.number} failed"}
            rank.up.write(json.dumps({"fail": failed}).encode() + b"\n")
        self._end(rank, state)

    def _end(self, rank: Rank, state: str) -> None:
        rank.state = state
        self.running -= 1
        rank.up.write(None)
