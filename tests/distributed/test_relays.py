"""Jobs whose ranks reach the helper process through relays, two ranks each, in real processes. The protocol is in
test_protocol.py."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.distributed.ranks import Ranks


@pytest.fixture(scope="module")
def relayed() -> Iterator[Ranks]:
    """Four ranks behind two relays."""
    group = Ranks(4, fan_in=2)
    yield group
    assert group.close() == [0] * 4


@pytest.mark.parametrize(
    ("module", "case"),
    [
        ("subgroups", "groups"),
        ("mesh_windows", "collectives_of_rows_and_columns"),
        ("mesh_windows", "collectives_of_rows_and_of_all"),
    ],
)
def test_relays_change_nothing(relayed: Ranks, module: str, case: str):
    relayed.run(module, case)


def test_a_rank_that_is_killed_behind_a_relay_is_named():
    with Ranks(4, fan_in=2) as ranks:
        ranks.start("faults", "ends_inside", how=signal.SIGKILL, n=4)
        for rank in (0, 2, 3):
            assert "rank 1 was killed or crashed, after all_reduce(add) float32[4]" in ranks.answer(rank)["result"]
        assert ranks.close() == [0, -signal.SIGKILL, 0, 0]


def test_the_end_of_a_relay_is_the_end_of_its_ranks(relayed: Ranks):
    """The last test of these processes, whose job is broken."""
    *first_two, third, fourth = relayed.run("faults", "helper_killed", what="relays", by=2)
    for text in first_two:
        assert "rank 2 is cut off: the relay process of ranks 2 to 3 was killed or crashed, after all_reduce" in text
    for text in (third, fourth):
        assert "the helper process of this job is gone" in text
