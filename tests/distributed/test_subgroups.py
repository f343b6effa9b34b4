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


@pytest.mark.parametrize("case", [case for case in cases("subgroups") if case != "many"])
def test_subgroups(four: Ranks, case: str):
    four.run("subgroups", case)


@pytest.mark.long
def test_more_ranks_than_cores():
    """`test_collectives` runs the same with two ranks."""
    six = Ranks(6)
    six.run("subgroups", "many")
    assert six.close() == [0] * 6
