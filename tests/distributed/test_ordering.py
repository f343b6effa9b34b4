from __future__ import annotations

import os

import pytest

from tests.distributed.ranks import Ranks, cases


@pytest.mark.parametrize("case", cases("ordering"))
def test_calls_wait_for_no_more_than_by_gloo(ranks: Ranks, case: str):
    for device in ("cpu", "tpu"):
        ranks.run("ordering", case, device=device)


def test_an_error_of_ranks_that_wait_for_each_other_names_both(ranks: Ranks):
    (first,), (second,) = ranks.run("ordering", "_waits_for_each_other", device="tpu")
    for text in (first, second):
        assert "rank 1 expects float32[4] at " in text or "recv float32[4] from rank 0 at " in text
        assert "all_reduce(add) float32[4]" in text
        assert text.count("cases/ordering.py:") >= 2


@pytest.mark.parametrize("seed", range(100, 100 + int(os.environ.get("DIVERGENT", "2"))))
def test_random_programs_of_three_ranks(three: Ranks, seed: int):
    """Programs of two ranks are in test_divergence.py."""
    three.run("random_programs", "run", seed=seed)
