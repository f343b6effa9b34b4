from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks, cases


@pytest.mark.parametrize("case", cases("wrappers"))
def test_wrappers(ranks: Ranks, case: str):
    ranks.run("wrappers", case)
