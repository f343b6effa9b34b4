from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks, cases


@pytest.mark.parametrize("case", cases("collectives"))
def test_collectives(ranks: Ranks, case: str):
    ranks.run("collectives", case)


@pytest.mark.parametrize("case", cases("unequal"))
def test_parts_of_unequal_sizes(ranks: Ranks, case: str):
    ranks.run("unequal", case)


@pytest.mark.parametrize("case", cases("sparse_tensors"))
def test_sparse_tensors(ranks: Ranks, case: str):
    ranks.run("sparse_tensors", case)
