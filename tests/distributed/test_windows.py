"""Cuts that run as one program with their collectives, in real processes. The protocol is in test_protocol.py."""

from __future__ import annotations

import os
import signal

import pytest

from tests.distributed.ranks import Ranks, cases

SEEDS = int(os.environ.get("DIVERGENT", "4"))
BY_THEMSELVES = ("fails", "random_programs_together")  # cases with arguments


@pytest.mark.parametrize("case", [name for name in cases("windows") if name not in BY_THEMSELVES])
def test_windows(ranks: Ranks, case: str):
    ranks.run("windows", case)


@pytest.mark.parametrize("seed", range(200, 200 + SEEDS))
def test_random_programs_of_three_ranks(three: Ranks, seed: int):
    """`make distributed` runs 200 of them."""
    three.run("windows", "random_programs_together", seed=seed)


@pytest.mark.parametrize("how", ["raise", "kill", "stop"])
def test_a_rank_that_fails_after_the_answer_breaks_the_group(how: str):
    with Ranks() as ranks:
        ranks.start("windows", "fails", where="inside", how=how)
        texts = ranks.answer(0)["result"]
        assert len(texts) >= 2, "a result that needs no other rank may be launched ahead"
        for text in texts:
            assert "rank 1" in text
        if how == "raise":
            texts = ranks.answer(1)["result"]
            assert "MemoryError: no room" in texts[0]
        elif how == "stop":
            os.kill(ranks.processes[1].pid, signal.SIGCONT)
            assert "rank 1" in ranks.answer(1)["result"][-1]


def test_results_that_need_no_other_rank_survive_a_killed_one():
    """The control plane answers with the loss of the rank, and the pieces run."""
    with Ranks() as ranks:
        ranks.start("windows", "fails", where="before", how="kill")
        texts = ranks.answer(0)["result"]
        assert len(texts) == 2, "what is computed before the collective is there"
        for text in texts:
            assert "rank 1 was killed or crashed" in text
