"""The protocol of cuts that ranks launch as one program, with simulated ranks."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lazytpu.distributed import comparison
from lazytpu.distributed.comparison import Arbiter
from lazytpu.distributed.ledger import Order, Post, Window, in_ranges
from lazytpu.distributed.relays import Relay
from lazytpu.distributed.wide import Wides
from tests.distributed.random_jobs import meshed, random_job, steady
from tests.distributed.simulated_links import Link
from tests.distributed.simulation import Cut, Simulation


def simulated(
    seed: int,
    size: int,
    make: Callable[..., Arbiter] = Arbiter,
    fan_in: int | None = None,
    relay: Callable[..., Relay] = Relay,
) -> Counter[str]:
    """Run a random job, and return its launches. Up to two ranks come late; one relay dies in every fifth job."""
    groups, programs, doomed = random_job(seed, size)
    dies = fan_in is not None and size > fan_in and seed % 5 == 0
    late = range(size)[seed % size :][: seed % 3]
    simulation = Simulation(
        seed, groups, programs, make, doomed, late=late, fan_in=fan_in, relay=relay, dead_relays=int(dies)
    )
    simulation.run()
    return simulation.launched


SEEDS = int(os.environ.get("DIVERGENT", "6"))


@pytest.mark.parametrize(
    ("size", "fan_in"), [(1, None), (2, None), (3, None), (4, None), (6, None), (4, 2), (6, 2), (8, 2), (9, 3)]
)
def test_all_ranks_launch_the_same(size: int, fan_in: int | None):
    """No window gets two answers, and no rank waits forever, also if ranks diverge, call other collectives, or die."""
    total: Counter[str] = Counter()
    for seed in range(10 * SEEDS):
        total += simulated(seed, size, fan_in=fan_in)
    assert total["whole"] > 50
    assert total["pieces"] > 50
    assert size in (1, 2, 3, 9) or total["wide"] > 20


@pytest.mark.parametrize("seed", range(SEEDS // 6))
def test_thousands_of_ranks_launch_the_same(seed: int):
    """`make distributed` runs 33 of them."""
    simulated(seed, 4096, fan_in=64)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_thousand_ranks_launch_the_same(seed: int):
    simulated(seed, 100_000, fan_in=64)


def test_a_step_of_many_ranks_is_few_messages_to_the_helper():
    """Each of 4 relays sends the first cut as its ranks come, and later ones at once."""
    groups, programs = steady(64, 5)
    simulation = Simulation(0, groups, programs, fan_in=16)
    simulation.run()
    assert simulation.launched == {"whole": 320}
    assert 5 * 4 <= simulation.server.posts < 5 * 64 / 2
    groups, programs = meshed(64, 3, 8)
    simulation = Simulation(0, groups, programs, fan_in=16)
    simulation.run()
    assert simulation.launched == {"whole": 192, "wide": 192}


def test_equal_cuts_are_always_whole():
    groups, programs = steady(4, 20)
    simulation = Simulation(0, groups, programs)
    simulation.run()
    assert simulation.launched == {"whole": 80}


def test_one_rank_in_pieces_has_all_ranks_run_pieces():
    groups, programs = steady(4, 3)
    programs[2][1] = replace(programs[2][1], mark="")
    programs[3][2] = replace(programs[3][2], mark="other")
    simulation = Simulation(0, groups, programs)
    simulation.run()
    assert simulation.launched == {"whole": 4, "pieces": 8}


def test_equal_cuts_among_different_ranks_are_always_whole():
    groups, programs = meshed(6, 20)
    simulation = Simulation(0, groups, programs)
    simulation.run()
    assert simulation.launched == {"whole": 120, "wide": 120}


def test_one_rank_in_pieces_has_the_whole_job_run_pieces():
    groups, programs = meshed(6, 3)
    programs[2][1] = replace(programs[2][1], mark="")
    programs[3][2] = replace(programs[3][2], mark="other")
    simulation = Simulation(0, groups, programs)
    simulation.run()
    assert simulation.launched == {"whole": 6, "wide": 6, "pieces": 12}


def test_other_ranks_delay_a_group_only_for_some_time():
    """Ranks 0 and 1 could launch their first collective; the others of the job have not come."""
    told: list[Any] = []
    timers: list[Callable[[], None]] = []
    arbiter = Arbiter(4, lambda ranks, message: told.append(message), lambda _, call: timers.append(call))
    groups, programs = meshed(4, 1)
    for rank, (cut,) in enumerate(programs):
        if rank == 2:
            assert not counted(told), "they wait for the answer"
            for timer in list(timers):
                timer()
            assert counted(told) == {"row 0": 2}
        calls = [(name, signature, "train.py:1") for name, signature in cut.calls]
        members = {name: in_ranges(groups[name]) for name, _ in cut.calls}
        arbiter.post((rank,), Post.parsed(calls, members, mark="same"))
    assert counted(told) == {"row 0": 2, "row 1": 2, "column 0": 1, "column 1": 1}
    assert not any("whole" in message for message in told), "one rank runs pieces, so all do"


class ByMajority(Arbiter):
    """It decides by the mark of most members."""

    def _is_whole(self, order: Order, window: Window) -> bool:
        return any(mark for mark, ranks in window.marks.items() if len(ranks) > len(order.members) // 2)


class Twice(Arbiter):
    """It decides when the first rank asks, and again when all have come."""

    def post(self, ranks: Sequence[int], post: Post) -> None:
        if post.mark:
            rank, first = ranks[0], post.groups[0]
            number = self.groups[first].calls.at.get(rank, 0) if first in self.groups else 0
            self._early(rank, first, number)
        super().post(ranks, post)

    def _early(self, rank: int, first: str, number: int) -> None:
        if rank == 0 and first in self.groups:
            self.groups[first].whole.append(number)


class Hasty(Arbiter):
    """It does not wait for the marks of all members."""

    def _is_whole(self, order: Order, window: Window) -> bool:
        return len(window.marks) == 1


def test_a_rank_with_a_collective_of_one_group_has_the_others_run_pieces_at_once():
    told: list[Any] = []
    arbiter = Arbiter(4, lambda ranks, message: told.append(message), lambda _, call: None)
    groups, programs = meshed(4, 1)
    for rank, (cut,) in enumerate(programs):
        named = [call for call in cut.calls if rank != 1 or "row" in call[0]]
        calls = [(name, signature, "train.py:1") for name, signature in named]
        members = {name: in_ranges(groups[name]) for name, _ in named}
        arbiter.post((rank,), Post.parsed(calls, members, mark="same"))
    assert counted(told)["row 0"] == 2
    assert not any("whole" in message for message in told)


def counted(told: list[Any]) -> dict[str, int]:
    """Return the number of agreed collectives by group."""
    return {message["agreed"]: message["count"] for message in told if "agreed" in message}


def test_a_collective_before_the_cut_on_one_rank_and_behind_it_on_another():
    """As one program the cut would wait for it on one rank, and it for the cut on the other."""
    for seed in range(20):
        assert crossing(seed) == {"pieces": 10}


def crossing(seed: int) -> Counter[str]:
    """Run a job of two meshes: the first rank of one has a collective with the last rank of the other before its cut,
    which has it behind its own."""
    groups, programs = meshed(4, 1)
    groups |= {f"other {name}": tuple(rank + 4 for rank in ranks) for name, ranks in groups.items()}
    programs += [[Cut(tuple((f"other {name}", text) for name, text in cut.calls), "same")] for (cut,) in programs]
    groups["pair"] = 0, 7
    between = Cut((("pair", "all_reduce float32[9]"),), "")
    programs[0].insert(0, between)
    programs[7].append(between)
    simulation = Simulation(seed, groups, programs)
    simulation.run()
    return simulation.launched


class ByGroup(Wides):
    """It asks the members of a cut's first group only."""

    def _decide(self) -> None:
        for cut in self._first():
            group = self.groups[cut.first[0]]
            cuts = [self._pending[rank][0] for rank in group.members if rank in self._pending]
            are_equal = all((each.first, each.mark) == (cut.first, cut.mark) for each in cuts)
            if are_equal and len(cuts) == len(group.members):
                group.whole.append(cut.first[1])
                for other in cuts:
                    self._drop(other)
                return


class AtAnyPlace(Wides):
    """It asks all ranks, but does not look at what each has posted before."""

    def _decide(self) -> None:
        first = self._first()
        if len(first) == self.size and len({cut.mark for cut in first}) == 1:
            for group, number in {cut.first for cut in first}:
                self.groups[group].whole.append(number)
            for cut in first:
                self._drop(cut)


@pytest.mark.parametrize(("mutation", "run"), [(ByGroup, lambda seed: simulated(seed, 4)), (AtAnyPlace, crossing)])
def test_a_wrong_decision_on_different_ranks_is_caught(mutation: Any, run: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparison, "Wides", mutation)
    assert caught(run) > 2


def caught(run: Callable[[int], Any]) -> int:
    """Return how many of some seeds are no valid runs."""
    count = 0
    for seed in range(50):
        try:
            run(seed)
        except (AssertionError, IndexError):  # of the simulation, or of the arbiter
            count += 1
    return count


class InAnyOrder(Arbiter):
    """It orders the collectives of a cut by the names of their groups."""

    def post(self, ranks: Sequence[int], post: Post) -> None:
        super().post(ranks, replace(post, groups=sorted(post.groups)))


class ByMarks(Arbiter):
    """It decides by the marks alone, whatever collectives the members have posted."""

    def _is_whole(self, order: Order, window: Window) -> bool:
        return [len(ranks) for ranks in window.marks.values()] == [len(order.members)]


def differing(seed: int, make: Callable[..., Arbiter], **changed: tuple[tuple[str, str], ...]) -> Counter[str]:
    """Run a job in which one rank has other collectives in a cut with the same mark."""
    groups, programs = steady(4, 3)
    programs[2][1] = replace(programs[2][1], **changed)
    simulation = Simulation(seed, groups, programs, make)
    simulation.run()
    return simulation.launched


(FIRST, SECOND, THIRD), OTHER = steady(1, 1)[1][0][0].calls, ("a", "all_gather int32[7]")


@pytest.mark.parametrize("calls", [(SECOND, FIRST, THIRD), (FIRST, THIRD, SECOND), (FIRST, SECOND, OTHER)])
def test_other_collectives_with_the_same_mark_are_launched_by_no_rank(calls: tuple[tuple[str, str], ...]):
    """The cut before them is whole on all ranks that come to launch it."""
    for seed in range(20):
        launched = differing(seed, Arbiter, calls=calls)
        assert launched.keys() <= {"whole"} and launched["whole"] <= 4


@pytest.mark.parametrize(
    ("mutation", "calls"),
    [(InAnyOrder, (FIRST, THIRD, SECOND)), (ByMarks, (FIRST, THIRD, SECOND)), (ByMarks, (FIRST, SECOND, OTHER))],
)
def test_an_arbiter_that_does_not_compare_a_whole_cut_is_caught(mutation: Any, calls: Any):
    assert caught(lambda seed: differing(seed, mutation, calls=calls)) > 2


@pytest.mark.parametrize("fan_in", [None, 2])
@pytest.mark.parametrize("mutation", [ByMajority, Twice, Hasty])
def test_a_wrong_arbiter_is_caught(mutation: Any, fan_in: int | None):
    assert caught(lambda seed: simulated(seed, 4, mutation, fan_in)) > 2


class Reorders(Relay):
    """It forwards waiting posts in another order."""

    def flush(self) -> None:
        self._waiting.reverse()
        super().flush()


class Overtakes(Relay):
    """It puts a post together with an equal one that is before an earlier post of the rank."""

    def receive(self, ranks: Sequence[int], line: bytes) -> None:
        self._ends.clear()
        super().receive(ranks, line)


class Drops(Relay):
    """It forwards a post of several ranks for the first ones only."""

    def _forward(self, ranks: Sequence[int], line: bytes) -> None:
        super()._forward(ranks[:2], line)


class Duplicates(Relay):
    """It forwards a post of several ranks twice."""

    def _forward(self, ranks: Sequence[int], line: bytes) -> None:
        for _ in ranks[:2]:
            super()._forward(ranks, line)


class Marks(Relay):
    """It takes the mark of one rank for the mark of all."""

    def receive(self, ranks: Sequence[int], line: bytes) -> None:
        message = json.loads(line)
        if "mark" in message.get("post", ()):
            self.mark = message["post"]["mark"]
        elif "post" in message and hasattr(self, "mark"):
            message["post"]["mark"] = self.mark
            line = json.dumps(message).encode() + b"\n"
        super().receive(ranks, line)


class Floods(Relay):
    """It forwards an answer to all of its ranks."""

    def down(self, line: bytes) -> None:
        self.send(tuple(self.writers), line.partition(b" ")[2])


def test_the_end_of_a_rank_is_reported_once_through_two_levels_of_relays():
    """The relay below ends when its last rank has ended, and takes no rank along."""
    ready: list[Any] = []
    up, below, other = Link(ready, lambda line: None), Link(ready, lambda line: None), Link(ready, lambda line: None)
    relay = Relay("token", up.write, lambda seconds, call: None)
    for link, rank in ((below, 0), (other, 1)):
        relay.attach(link, b'{"relay": "ranks %d to %d", "token": "token"}' % (rank, rank))
        relay.take(link, b'%d:1:1 {"hello": %d, "token": "token", "folder": ""}\n' % (rank, rank))
    gone = b'0:1:1 {"gone": {"how": "was killed or crashed"}}\n'
    relay.take(below, gone)
    relay.detach(below)
    assert up.lines[2:] == [gone]
    relay.take(other, b'1:1:1 {"post": {}}\n')
    assert up.lines[3:] == [b'1:1:1 {"post": {}}\n'], "no rank is behind this one"
    assert not relay.empty.is_set()
    relay.take(other, b"1" + gone[1:])
    assert relay.empty.is_set()


@pytest.mark.parametrize("mutation", [Reorders, Overtakes, Drops, Duplicates, Marks, Floods])
def test_a_wrong_relay_is_caught(mutation: Any):
    assert caught(lambda seed: simulated(seed, 6, fan_in=3, relay=mutation)) > 2
