"""The protocol of cuts that ranks launch as one program, with simulated ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from lazytpu.distributed.comparison import Arbiter, Order, Window
from lazytpu.distributed.ledger import Post
from tests.distributed.simulation import Cut, ProtocolError, Simulation, random_job


def simulated(seed: int, size: int, make: Callable[..., Arbiter] = Arbiter) -> Counter[str]:
    """Run a random job, and return its launches."""
    groups, programs, doomed = random_job(seed, size)
    simulation = Simulation(seed, groups, programs, make, doomed)
    simulation.run()
    return simulation.launched


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_all_ranks_launch_the_same(size: int):
    """No window gets two answers, and no rank waits forever, also if ranks diverge, call other collectives, or die."""
    total: Counter[str] = Counter()
    for seed in range(150):
        total += simulated(seed, size)
    assert total["whole"] > 100
    assert total["pieces"] > 100


def test_hundreds_of_ranks_launch_the_same():
    assert sum((simulated(seed, 300) for seed in range(3)), Counter())["whole"] > 300


def steady(size: int, count: int) -> tuple[dict[str, tuple[int, ...]], list[list[Cut]]]:
    """Return the groups and programs of ranks that run equal cuts."""
    calls = [("a", "all_reduce float32[2]"), ("b", "all_reduce float32[3]"), ("a", "all_reduce float32[4]")]
    groups = {"a": tuple(range(size)), "b": tuple(range(size))}
    return groups, [[Cut(calls, "same") for _ in range(count)] for _ in range(size)]


def test_equal_cuts_are_always_whole():
    groups, programs = steady(4, 20)
    simulation = Simulation(0, groups, programs)
    simulation.run()
    assert simulation.launched == {"whole": 80}


def test_one_rank_in_pieces_has_all_ranks_run_pieces():
    groups, programs = steady(4, 3)
    programs[2][1].mark = ""
    programs[3][2].mark = "other"
    simulation = Simulation(0, groups, programs)
    simulation.run()
    assert simulation.launched == {"whole": 4, "pieces": 8}


class ByMajority(Arbiter):
    """It decides by the mark of most members."""

    def _is_whole(self, order: Order, window: Window) -> bool:
        return any(mark for mark, ranks in window.marks.items() if len(ranks) > len(order.members) // 2)


class Twice(Arbiter):
    """It decides when the first rank asks, and again when all have come."""

    def post(self, rank: int, post: Post) -> None:
        if post.mark:
            first = post.groups[0]
            number = self.groups[first].calls.at.get(rank, 0) if first in self.groups else 0
            self._early(rank, first, number)
        super().post(rank, post)

    def _early(self, rank: int, first: str, number: int) -> None:
        if rank == 0 and first in self.groups:
            self.groups[first].whole.append(number)


class Hasty(Arbiter):
    """It does not wait for the marks of all members."""

    def _is_whole(self, order: Order, window: Window) -> bool:
        return len(window.marks) == 1


@pytest.mark.parametrize("mutation", [ByMajority, Twice, Hasty])
def test_a_wrong_arbiter_is_caught(mutation: Any):
    caught = 0
    for seed in range(60):
        try:
            simulated(seed, 4, mutation)
        except ProtocolError:
            caught += 1
    assert caught > 5
