"""Experts on different ranks, whose numbers of tokens vary."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks, cases


@pytest.mark.parametrize("case", cases("experts"))
def test_experts(ranks: Ranks, case: str):
    ranks.run("experts", case)
