from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks, cases


@pytest.mark.parametrize("case", cases("training"))
def test_training(ranks: Ranks, case: str):
    ranks.run("training", case)
