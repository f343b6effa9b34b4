from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import Ranks, cases


@pytest.mark.parametrize("case", cases("rehearsals"))
def test_two_ranks(ranks: Ranks, case: str):
    ranks.run("rehearsals", case)


@pytest.fixture(scope="module")
def one_rank() -> Iterator[Ranks]:
    with Ranks(1) as alone:
        yield alone


@pytest.mark.long
@pytest.mark.parametrize("case", cases("rehearsals"))
def test_one_rank(one_rank: Ranks, case: str):
    one_rank.run("rehearsals", case)
