from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks, cases


@pytest.mark.parametrize("case", cases("context"))
def test_context(ranks: Ranks, case: str):
    ranks.run("context", case)
