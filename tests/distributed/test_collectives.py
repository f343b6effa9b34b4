from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks, cases


@pytest.mark.parametrize("case", cases("collectives"))
def test_collectives(ranks: Ranks, case: str):
    ranks.run("collectives", case)
