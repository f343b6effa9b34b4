from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks, cases


@pytest.mark.parametrize("case", [name for name in cases("divergence") if name != "random_programs"])
def test_divergence(ranks: Ranks, case: str):
    ranks.run("divergence", case)


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(ranks: Ranks, seed: int):
    ranks.run("divergence", "random_programs", seed=seed)
