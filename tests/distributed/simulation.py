"""A simulation of ranks that launch the collectives of random programs, and ask the arbiter before.

Ranks, their devices and the arbiter take steps in random order; messages between a rank and the arbiter keep their
order. Each rank cuts its program at places of its own, has the program of a cut or lacks it, and may call a collective
that differs, be late, or die at any time.

The device of a rank runs its launches one after the other. A launch is one collective or the program of a whole cut; it
ends once the devices of all members run it, and they must run the same. The program of a cut among different ranks runs
on all ranks of the job.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lazytpu.distributed.comparison import Arbiter
from lazytpu.distributed.ledger import CRASHED, ENDED, Post, in_ranges

AHEAD = 4  # cuts that a rank may post before the first of them is launched
Place = tuple[str, int]
"""A group, and the number of a collective in it."""


class ProtocolError(AssertionError):
    """Ranks were about to launch different programs, or wait for each other."""


@dataclass(frozen=True)
class Launch:
    """A launch of a rank: the collectives in it, and the mark of the whole cut; "" for a single collective."""

    places: tuple[Place, ...]
    mark: str


@dataclass
class Cut:
    """A cut of a rank: its collectives, as (group, signature), and its mark."""

    calls: list[tuple[str, str]]
    mark: str


@dataclass
class Rank:
    """A simulated rank. `cuts` are still to be posted, and `posted` those that are not launched yet, with the places of
    their collectives."""

    number: int
    cuts: deque[Cut]
    posted: deque[tuple[Cut, list[Place]]] = field(default_factory=deque[Any])
    launches: deque[Launch] = field(default_factory=deque[Launch])
    counts: Counter[str] = field(default_factory=Counter[str])
    agreed: dict[str, int] = field(default_factory=dict[str, int])
    whole: set[Place] = field(default_factory=set[Place])
    broken: set[str] = field(default_factory=set[str])
    known: set[str] = field(default_factory=set[str])
    state: str = "runs"
    asked: int = 0  # collectives of the first posted cut that are launched by themselves

    @property
    def is_over(self) -> bool:
        """Whether it has ended in some way."""
        return self.state != "runs"


def _alike(one: Launch, other: Launch) -> bool:
    """Return whether two ranks run the same program: with the same mark, and in each group the same collectives."""
    if one.mark != other.mark:
        return False
    groups = {name for name, _ in one.places} & {name for name, _ in other.places}
    return all(
        [place for place in one.places if place[0] == name] == [place for place in other.places if place[0] == name]
        for name in groups
    ) and (bool(one.mark) or one.places == other.places)


class Simulation:
    """The ranks of a job with these programs, by rank, and groups by name. `make` creates the arbiter."""

    def __init__(
        self,
        seed: int,
        groups: dict[str, tuple[int, ...]],
        programs: Sequence[Sequence[Cut]],
        make: Callable[..., Arbiter] = Arbiter,
        deaths: Iterable[int] = (),
    ):
        self.random = random.Random(seed)
        self.groups = groups
        self.ranks = [Rank(i, deque(cuts)) for i, cuts in enumerate(programs)]
        self.doomed = set(deaths)
        self.to_arbiter: list[deque[Any]] = [deque() for _ in programs]
        self.to_rank: list[deque[Any]] = [deque() for _ in programs]
        self.timers: list[Callable[[], None]] = []
        self.arbiter = make(len(programs), self._tell, lambda seconds, call: self.timers.append(call))
        self.launched: Counter[str] = Counter()  # the cuts that ended: "whole", of these "wide" ones, and "pieces"

    def _tell(self, ranks: Iterable[int], message: Any) -> None:
        for rank in ranks:
            self.to_rank[rank].append(message)

    def run(self) -> None:
        """Take steps until all ranks have ended. Raises ProtocolError."""
        idle = 0
        while not all(rank.is_over for rank in self.ranks):
            steps = [self._deliver, self._receive, self._post, self._launch, self._finish, self._end]
            if self.doomed:
                steps.append(self._die)
            self.random.shuffle(steps)
            ranks = list(range(len(self.ranks)))
            self.random.shuffle(ranks)
            some = ranks if idle else ranks[: max(1, len(ranks) // 2)]
            moved = [step(rank) for step in steps for rank in some]
            if self.timers and (idle or self.random.random() < 0.005):
                self.timers.pop(self.random.randrange(len(self.timers)))()
                moved.append(True)
            idle = 0 if any(moved) else idle + 1
            if idle > 1:
                waiting = {rank.number: [*rank.launches][:1] or [*rank.posted][:1] for rank in self.ranks}
                raise ProtocolError(f"all ranks wait: {waiting}")

    # -- steps of one rank: each returns whether something happened

    def _deliver(self, number: int) -> bool:
        """Let the arbiter receive the next message of a rank."""
        if not self.to_arbiter[number]:
            return False
        message = self.to_arbiter[number].popleft()
        if isinstance(message, Post):
            self.arbiter.post((number,), message)
        elif message[0] == "fail":
            self.arbiter.fail(message[1], in_ranges(self.groups[message[1]]), f"rank {number} failed")
        else:
            self.arbiter.leaves(number, message[1])
        return True

    def _receive(self, number: int) -> bool:
        rank = self.ranks[number]
        if not self.to_rank[number]:
            return False
        message = self.to_rank[number].popleft()
        if "agreed" in message:
            group = message["agreed"]
            if message["count"] <= rank.agreed.get(group, 0):
                raise ProtocolError(f"{group}: {message} after {rank.agreed}")
            rank.agreed[group] = message["count"]
            rank.whole.update((group, place) for place in message.get("whole", ()))
        elif "broken" in message:
            rank.broken.add(message["broken"])
        return True

    def _post(self, number: int) -> bool:
        rank = self.ranks[number]
        if rank.is_over or not rank.cuts or len(rank.posted) >= AHEAD:
            return False
        cut = rank.cuts.popleft()
        names = {name for name, _ in cut.calls} - rank.known
        members = {name: in_ranges(self.groups[name]) for name in names}
        rank.known |= names
        calls = [(name, signature, "train.py:1") for name, signature in cut.calls]
        self.to_arbiter[number].append(Post.parsed(calls, members, mark=cut.mark, about="a cut"))
        places: list[Place] = []
        for name, _ in cut.calls:
            places.append((name, rank.counts[name]))
            rank.counts[name] += 1
        rank.posted.append((cut, places))
        return True

    def _launch(self, number: int) -> bool:
        """Launch what is agreed of the first posted cut."""
        rank = self.ranks[number]
        if rank.is_over or not rank.posted:
            return False
        cut, places = rank.posted[0]
        name, place = places[rank.asked]
        if rank.agreed.get(name, 0) <= place:
            if name in rank.broken:
                self._give_up(rank, "raised")
                return True
            return False
        if cut.mark and not rank.asked and (name, place) in rank.whole:
            rank.launches.append(Launch(tuple(places), cut.mark))
            rank.asked = len(places)
            self.launched["whole"] += 1
            if len({self.groups[name] for name, _ in places}) > 1:
                self.launched["wide"] += 1
        else:
            rank.launches.append(Launch((places[rank.asked],), ""))
            rank.asked += 1
            self.launched["pieces"] += rank.asked == len(places)
        if rank.asked == len(places):
            rank.posted.popleft()
            rank.asked = 0
        return True

    def _finish(self, number: int) -> bool:
        """End the current launch of a rank's device, if all members run it."""
        rank = self.ranks[number]
        if rank.is_over or not rank.launches:
            return False
        launch = rank.launches[0]
        members = {member for name, _ in launch.places for member in self.groups[name]}
        if len({frozenset(self.groups[name]) for name, _ in launch.places}) > 1:
            members = set(range(len(self.ranks)))  # the program of a cut among different ranks runs on all of them
        if any(name in rank.broken and self._is_lost(name) for name, _ in launch.places):
            self._give_up(rank, "raised")  # its connections are cut
            return True
        peers = [self.ranks[member] for member in members]
        current = [peer.launches[0] for peer in peers if peer.launches and not peer.is_over]
        for other in current:
            if not _alike(other, launch) and set(other.places) & set(launch.places):
                raise ProtocolError(f"rank {number} launches {launch}, another one {other}")
        if len(current) < len(peers) or not all(_alike(other, launch) for other in current):
            return False
        for peer in peers:
            peer.launches.popleft()
        return True

    def _is_lost(self, name: str) -> bool:
        return any(self.ranks[member].state in ("died", "raised") for member in self.groups[name])

    def _end(self, number: int) -> bool:
        rank = self.ranks[number]
        if rank.is_over or rank.cuts or rank.posted or rank.launches:
            return False
        rank.state = "ended"
        self.to_arbiter[number].append(("leaves", ENDED))
        return True

    def _die(self, number: int) -> bool:
        """Let a doomed rank die, or fail before its next collective."""
        rank = self.ranks[number]
        if rank.is_over or number not in self.doomed or self.random.random() > 0.05:
            return False
        self._give_up(rank, "died")
        return True

    def _give_up(self, rank: Rank, state: str) -> None:
        rank.state = state
        self.doomed.discard(rank.number)
        for name in {name for _, places in rank.posted for name, _ in places} if self.random.random() < 0.5 else ():
            self.to_arbiter[rank.number].append(("fail", name))
        self.to_arbiter[rank.number].append(("leaves", CRASHED))


def random_job(seed: int, size: int) -> tuple[dict[str, tuple[int, ...]], list[list[Cut]], list[int]]:
    """Return the groups, programs and doomed ranks of a job. Its ranks call the same collectives, mostly in the same
    cuts, and mostly have the same programs of them."""
    draw = random.Random(seed)
    everyone = tuple(range(size))
    groups = {"world": everyone, "again": everyone}
    meshed = size % 2 == 0 and size > 2 and draw.random() < 0.5
    if meshed:  # all ranks call the collectives of their row and column at the same time
        groups |= {f"row {i}": everyone[2 * i : 2 * i + 2] for i in range(size // 2)}
        groups |= {f"column {i}": everyone[i::2] for i in range(2)}
    elif size > 2:
        groups |= {"left": everyone[: size // 2], "right": everyone[size // 2 :], "left again": everyone[: size // 2]}
    # Some steps are repeated, as in training.
    kinds_of = ["world", "row", "column"] if meshed else list(groups)
    names = [name for name in kinds_of if draw.random() < 0.7] or ["world"]
    kinds = [[draw.choice(names) for _ in range(draw.randint(1, 5))] for _ in range(draw.randint(1, 3))]
    steps = [draw.choice(kinds) for _ in range(draw.randint(2, 12))]
    programs: list[list[Cut]] = []
    changes, misses = draw.choice([(0.0, 0.0), (0.1, 0.1), (0.3, 0.4)])
    wrong = draw.randrange(size) if draw.random() < 0.15 else None
    for rank in everyone:
        ready = draw.randint(0, 3)  # the step at which its programs are compiled
        cuts: list[Cut] = []
        for number, step in enumerate(steps):
            of_rank = {"row": f"row {rank // 2}", "column": f"column {rank % 2}"} if meshed else {}
            named = [(of_rank.get(name, name), f"all_reduce float32[{i}]", name) for i, name in enumerate(step)]
            calls = [(name, signature) for name, signature, _ in named if rank in groups[name]]
            kinds_called = [(kind, signature) for name, signature, kind in named if rank in groups[name]]
            if rank == wrong and number == len(steps) // 2 and calls:
                calls[-1] = (calls[-1][0], "all_gather int32[7]")
            sections = [slice(0, len(calls))]
            if len(calls) > 1 and draw.random() < changes:
                at = draw.randint(1, len(calls) - 1)
                sections = [slice(0, at), slice(at, len(calls))]
            for section in sections if calls else ():
                called = calls[section]
                has_program = meshed or len({groups[name] for name, _ in called}) == 1
                mark = f"{kinds_called[section]}" if has_program and number >= ready and draw.random() >= misses else ""
                if mark and draw.random() < changes / 2:
                    mark = f"keeps the loss {mark}"
                cuts.append(Cut(called, mark))
        programs.append(cuts)
    doomed = draw.sample(everyone, draw.randint(0, min(2, size - 1))) if draw.random() < 0.3 else []
    return groups, programs, doomed
