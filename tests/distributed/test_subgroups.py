from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import Ranks, cases


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    """Four ranks."""
    ranks = Ranks(4)
    yield ranks
    assert ranks.close() == [0] * 4


@pytest.mark.parametrize("case", cases("subgroups"))
def test_subgroups(four: Ranks, case: str):
    four.run("subgroups", case)
