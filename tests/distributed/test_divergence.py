from __future__ import annotations

import os

import pytest

from tests.distributed.ranks import Ranks, cases


@pytest.mark.parametrize("case", cases("divergence"))
def test_divergence(ranks: Ranks, case: str):
    ranks.run("divergence", case)


@pytest.mark.parametrize("seed", range(int(os.environ.get("DIVERGENT", "3"))))
def test_random_programs(ranks: Ranks, seed: int):
    """`make distributed` runs 200 of them."""
    ranks.run("random_programs", "run", seed=seed)
