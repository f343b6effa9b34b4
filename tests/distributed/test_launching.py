from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from lazytpu.distributed.world import World
from tests.distributed.ranks import Ranks


@pytest.mark.parametrize(
    "case",
    [
        "cuts_return_before_the_others_come",
        "values_before_a_collective_are_read",
        "an_interrupt_ends_a_wait_for_the_others",
        "compilations_wait_for_no_rank",
        "collectives_of_two_threads_keep_their_order",
    ],
)
def test_cuts_wait_on_a_thread(ranks: Ranks, case: str):
    ranks.run("launching", case)


@pytest.mark.parametrize(
    "case",
    [
        "cuts_that_catch_up_fail_like_deferred_cuts",
        "a_failure_is_raised_once",
        "failures_on_the_serving_thread_are_raised",
        "failures_before_a_launch_begins_are_raised",
        "results_launched_ahead_are_not_lost",
    ],
)
def test_cuts_fail_on_a_thread(ranks: Ranks, case: str):
    ranks.run("launch_failures", case)


def test_a_failure_is_raised_where_a_result_is_needed(ranks: Ranks):
    for texts in ranks.run("launch_failures", "failures_are_raised_where_a_result_is_needed"):
        for text in texts:
            assert "rank 0: all_reduce(add) float32[4] at " in text
            assert "rank 1: all_reduce(add) float32[5] at " in text
            assert text.count("cases/launch_failures.py:") == 3, "the lines of both ranks, and of this one"


def test_cuts_that_depend_on_a_failed_one_fail(ranks: Ranks):
    for (text,) in ranks.run("launch_failures", "cuts_that_depend_on_a_failed_one_fail"):
        assert "rank 1: all_reduce(add) float32[5] at " in text


def test_a_handle_waits_for_some_time(ranks: Ranks):
    first, second = ranks.run("launching", "handles_wait_for_some_time")
    assert first[0] == "Operation timed out!"
    assert "the ranks disagree about collective" in first[1]
    assert "the ranks disagree about collective" in second[0]


def test_no_cut_for_other_ranks_behind_deferred_cuts():
    """A failure there would be raised on the serving thread, and nowhere else."""
    world: Any = object.__new__(World)
    recorder: Any = SimpleNamespace(cut_lock=threading.Lock(), state="waited for", cut=lambda cause: cuts.append(cause))
    cuts: list[str] = []
    for is_busy, untold in ((True, False), (False, True), (False, False)):
        assert not cuts
        world.launcher, world.deferral = (
            SimpleNamespace(is_busy=is_busy),
            SimpleNamespace(has_untold=iter([untold]).__next__, serving=nullcontext),
        )
        world._cut(recorder, "waited for")
    assert len(cuts) == 1
