from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks


@pytest.mark.parametrize(
    "case",
    [
        "cuts_return_before_the_others_come",
        "what_needs_no_other_rank_is_read",
        "an_interrupt_ends_a_wait_for_the_others",
    ],
)
def test_cuts_wait_on_a_thread(ranks: Ranks, case: str):
    ranks.run("launching", case)


def test_a_failure_is_raised_where_a_result_is_needed(ranks: Ranks):
    for texts in ranks.run("launching", "failures_are_raised_where_a_result_is_needed"):
        for text in texts:
            assert "rank 0: all_reduce(add) float32[4] at " in text
            assert "rank 1: all_reduce(add) float32[5] at " in text
            assert text.count("cases/launching.py:") == 3, "the lines of both ranks, and of this one"


def test_cuts_that_depend_on_a_failed_one_fail(ranks: Ranks):
    for (text,) in ranks.run("launching", "cuts_that_depend_on_a_failed_one_fail"):
        assert "rank 1: all_reduce(add) float32[5] at " in text


def test_a_handle_waits_for_some_time(ranks: Ranks):
    first, second = ranks.run("launching", "handles_wait_for_some_time")
    assert first[0] == "Operation timed out!"
    assert "the ranks disagree about collective" in first[1]
    assert "the ranks disagree about collective" in second[0]
