from __future__ import annotations

import re
import signal

import pytest

from tests.distributed.ranks import Ranks

SIGNATURES = {
    "shape": ("all_reduce(add) float32[4]", "all_reduce(add) float32[5]"),
    "dtype": ("all_reduce(add) float32[4]", "all_reduce(add) int32[4]"),
    "order": ("all_reduce(add) float32[4]", "broadcast(root 0) float32[4]"),
    "second use": ("all_reduce(add) float32[4]", "all_reduce(add) float32[5]"),
}


@pytest.mark.parametrize("what", SIGNATURES)
def test_a_mismatch_is_told_to_all_ranks(ranks: Ranks, what: str):
    texts = ranks.run("faults", "mismatched", what=what)
    for text in texts:
        assert "the ranks disagree about collective" in text
        for rank, signature in enumerate(SIGNATURES[what]):
            assert f"rank {rank}: {signature} at " in text
        assert text.count("cases/faults.py:") >= 3, "the lines of both ranks, and of this one"


def test_the_line_is_that_of_this_call(ranks: Ranks):
    """Though the record is shared with an earlier one."""
    for text in ranks.run("faults", "two_lines"):
        lines = [int(line) for line in re.findall(r"rank \d: all_reduce.* at \S*faults.py:(\d+)", text)]
        assert lines[0] + 2 == lines[1]


def test_a_rank_that_does_not_come_is_named(ranks: Ranks):
    first, second = ranks.run("faults", "too_late")
    assert "rank 0 waited 1 s in collective 0" in first
    assert "for rank 1 (its last: none)" in first
    assert "rank 0 waited 1 s" in second


def test_a_killed_rank_is_named():
    ranks = Ranks()
    ranks.start("faults", "killed")
    answer = ranks.answer(0)
    assert "rank 1 was killed or crashed, after all_reduce(add) float32[4]" in answer["result"]
    assert ranks.close() == [0, -signal.SIGKILL]


def test_the_end_of_the_helper_is_an_error_on_all_ranks():
    """XLA's client would end its process as soon as the coordination service is gone; the relay keeps that from it."""
    ranks = Ranks()
    for text in ranks.run("faults", "helper_killed"):
        assert "all_reduce(add) float32[4] at " in text
        assert "the helper process of this job is gone" in text
    assert ranks.close() == [0, 0]
