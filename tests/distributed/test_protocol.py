"""The protocol of cuts that ranks launch as one program, with simulated ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lazytpu.distributed import comparison
from lazytpu.distributed.comparison import Arbiter
from lazytpu.distributed.ledger import Order, Post, Window, in_ranges
from lazytpu.distributed.wide import Wides
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
    assert size in (1, 2, 3) or total["wide"] > 50


def test_hundreds_of_ranks_launch_the_same():
    assert simulated(4, 300)["whole"] > 300
    groups, programs = meshed(300, 3)
    simulation = Simulation(0, groups, programs)
    simulation.run()
    assert simulation.launched == {"whole": 900, "wide": 900}


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


def meshed(size: int, count: int) -> tuple[dict[str, tuple[int, ...]], list[list[Cut]]]:
    """Return the groups and programs of ranks in two columns, whose equal cuts have collectives in rows and columns."""
    everyone = tuple(range(size))
    groups = {f"row {i}": everyone[2 * i : 2 * i + 2] for i in range(size // 2)}
    groups |= {f"column {i}": everyone[i::2] for i in range(2)}
    programs: list[list[Cut]] = []
    for rank in everyone:
        row, column = f"row {rank // 2}", f"column {rank % 2}"
        calls = [(row, "all_gather float32[2]"), (column, "all_reduce float32[3]"), (row, "all_gather float32[2]")]
        programs.append([Cut(calls, "same") for _ in range(count)])
    return groups, programs


def test_equal_cuts_among_different_ranks_are_always_whole():
    groups, programs = meshed(6, 20)
    simulation = Simulation(0, groups, programs)
    simulation.run()
    assert simulation.launched == {"whole": 120, "wide": 120}


def test_one_rank_in_pieces_has_the_whole_job_run_pieces():
    groups, programs = meshed(6, 3)
    programs[2][1].mark = ""
    programs[3][2].mark = "other"
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
    programs += [[Cut([(f"other {name}", text) for name, text in cut.calls], "same")] for (cut,) in programs]
    groups["pair"] = 0, 7
    between = Cut([("pair", "all_reduce float32[9]")], "")
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
                self._drop(cuts)
                return


class AtAnyPlace(Wides):
    """It asks all ranks, but does not look at what each has posted before."""

    def _decide(self) -> None:
        first = self._first()
        if len(first) == self.size and len({cut.mark for cut in first}) == 1:
            for group, number in {cut.first for cut in first}:
                self.groups[group].whole.append(number)
            self._drop(first)


@pytest.mark.parametrize(("mutation", "run"), [(ByGroup, lambda seed: simulated(seed, 4)), (AtAnyPlace, crossing)])
def test_a_wrong_decision_on_different_ranks_is_caught(mutation: Any, run: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparison, "Wides", mutation)
    assert caught(run) > 5


def caught(run: Callable[[int], Any]) -> int:
    """Return how many of some seeds are no valid runs."""
    count = 0
    for seed in range(100):
        try:
            run(seed)
        except ProtocolError:
            count += 1
    return count


@pytest.mark.parametrize("mutation", [ByMajority, Twice, Hasty])
def test_a_wrong_arbiter_is_caught(mutation: Any):
    assert caught(lambda seed: simulated(seed, 4, mutation)) > 5
