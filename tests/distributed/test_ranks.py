from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks


def test_a_case_that_fails_gets_new_processes_for_the_next(monkeypatch: pytest.MonkeyPatch):
    """One rank fails while the other waits for it: the broken group fails no other test."""
    monkeypatch.setattr("tests.distributed.ranks.OTHERS", 1.0)
    with Ranks() as ranks:
        before = [process.pid for process in ranks.processes]
        with pytest.raises(AssertionError, match=r"rank 1: (.|\n)*this rank fails"):
            ranks.run("faults", "one_rank_fails")
        assert not {process.pid for process in ranks.processes} & set(before)
        ranks.run("collectives", "averages")
