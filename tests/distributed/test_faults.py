from __future__ import annotations

import os
import re
import signal

import pytest

from tests.distributed.ranks import Ranks

SIGNATURES = {
    "shape": ("all_reduce(add) float32[4]", "all_reduce(add) float32[5]"),
    "dtype": ("all_reduce(add) float32[4]", "all_reduce(add) int32[4]"),
    "order": ("all_reduce(add) float32[4]", "broadcast(root 0) float32[4]"),
}
SIGNATURES |= {f"second use: {what}": both for what, both in SIGNATURES.items()}


@pytest.mark.parametrize("what", SIGNATURES)
def test_a_mismatch_is_reported_to_all_ranks(ranks: Ranks, what: str):
    texts = ranks.run("faults", "mismatched", what=what)
    for text in texts:
        assert "the ranks disagree about collective" in text
        for rank, signature in enumerate(SIGNATURES[what]):
            assert f"rank {rank}: {signature} at " in text
        assert text.count("cases/faults.py:") >= 3, "the lines of both ranks, and of this one"


def test_an_error_has_the_line_of_its_own_call(ranks: Ranks):
    """Its record is shared with an earlier call at another line."""
    for text in ranks.run("faults", "two_lines"):
        lines = [int(line) for line in re.findall(r"rank \d: all_reduce.* at \S*faults.py:(\d+)", text)]
        assert lines[0] + 2 == lines[1]


def test_a_missing_rank_is_named(ranks: Ranks):
    first, second = ranks.run("faults", "too_late")
    assert "rank 0 waited 1 s in collective 0" in first
    assert "for rank 1 (its last: none)" in first
    assert "rank 0 waited 1 s" in second


def test_groups_of_the_same_ranks_in_other_orders(ranks: Ranks):
    """Without the check they would receive each other's values."""
    for (text,) in ranks.run("faults", "other_orders_of_groups"):
        assert "the ranks disagree about the order of groups with the same ranks" in text
        assert len(re.findall(r"rank \d: first all_reduce\(add\) float32\[3\] at \S*faults.py:\d+ in group", text)) == 2


MISSING = {
    "barrier": "barrier",
    "new_group": "new_group",
    "CPU tensors": r"allreduce of CPU tensors float32\[3\]",
    "handle": r"allreduce of CPU tensors float32\[3\]",
}


@pytest.mark.parametrize("what", MISSING)
def test_a_missing_rank_is_named_where_nothing_is_launched(ranks: Ranks, what: str):
    text = ranks.run("faults", "missing", what=what)[0]
    assert re.search(
        rf"{MISSING[what]} at .*faults.py:\d+: rank 0 waited [\d.]+ s .* for rank 1 \(its last: none", text
    )


def test_a_missing_message_names_its_sender(ranks: Ranks):
    text = ranks.run("faults", "missing", what="message")[0]
    assert re.search(r"recv float32\[3\] from rank 1 at .*faults.py:\d+: the other end did not come within 1 s", text)


def test_a_mismatched_message_fails_on_both_ranks(ranks: Ranks):
    for texts in ranks.run("faults", "messages_that_disagree"):
        for text, expected in zip(texts, ("float32[6]", "float32[2]", "int32[4]"), strict=True):
            assert re.search(r"rank 0 sends float32\[4\] at \S*faults.py:\d+", text)
            assert re.search(rf"rank 1 expects {re.escape(expected)} at \S*faults.py:\d+", text)


def test_collectives_of_cpu_tensors_are_compared(ranks: Ranks):
    for texts in ranks.run("faults", "host_tensors_that_disagree"):
        assert len(texts) == 2
        for text in texts:
            for rank in range(2):
                assert re.search(rf"rank {rank}: allreduce of CPU tensors float32\[{4 + rank}\] at \S*faults.py", text)


def test_handles_of_cpu_tensors(ranks: Ranks):
    ranks.run("faults", "handles_of_host_tensors")


def test_a_killed_rank_is_named():
    """Every call after that names it."""
    ranks = Ranks()
    ranks.start("faults", "killed")
    collective, *errors = ranks.answer(0)["result"]
    assert "rank 1 was killed or crashed, after all_reduce(add) float32[4]" in collective
    for text in errors:
        assert "rank 1 was killed or crashed" in text
        assert "faults.py:" in text
    assert ranks.close() == [0, -signal.SIGKILL]


def test_the_end_of_the_helper_is_an_error_on_all_ranks():
    """XLA's client would abort its process as soon as the coordination service is gone; the relay prevents that."""
    ranks = Ranks()
    for text in ranks.run("faults", "helper_killed"):
        assert "all_reduce(add) float32[4] at " in text
        assert "the helper process of this job is gone" in text
    assert ranks.close() == [0, 0]


@pytest.mark.parametrize("n", [4, 1 << 16])
def test_a_rank_that_stops_inside_a_collective_is_named(n: int):
    """XLA has no timeout there."""
    with Ranks() as ranks:
        ranks.start("faults", "ends_inside", how=signal.SIGSTOP, n=n)
        text = ranks.answer(0)["result"]
        assert f"all_reduce(add) float32[{n}] at " in text
        assert re.search(r"rank 0 is in collective \d of group .*faults.py:\d+, for 1 s", text)
        assert "rank 1 does not answer: it has stopped" in text
        os.kill(ranks.processes[1].pid, signal.SIGCONT)
        assert "rank 1 does not answer" in ranks.answer(1)["result"]
        assert ranks.close() == [0, 0]
        assert "is broken on rank 0" in ranks.processes[0].communicate()[1], "the report is written to standard error"


def test_a_rank_that_stops_inside_a_collective_of_cpu_tensors_is_named():
    """Gloo's error has neither the rank nor the line."""
    with Ranks() as ranks:
        ranks.start("faults", "stops_inside_gloo")
        text = ranks.answer(0)["result"]
        assert re.search(r"allreduce of CPU tensors float32\[3\] at \S*faults.py:\d+: rank 0 is in collective 0 ", text)
        assert "rank 1 does not answer: it has stopped" in text
        os.kill(ranks.processes[1].pid, signal.SIGCONT)
        assert "rank 1 does not answer" in ranks.answer(1)["result"]


def test_a_rank_that_is_killed_inside_a_collective_is_named_on_all_ranks():
    """Also on ranks that were waiting for a rank other than the killed one."""
    with Ranks(4) as ranks:
        ranks.start("faults", "ends_inside", how=signal.SIGKILL, n=4)
        for rank in (0, 2, 3):
            text = ranks.answer(rank)["result"]
            assert "all_reduce(add) float32[4] at " in text
            assert "rank 1 was killed or crashed, after all_reduce(add) float32[4]" in text
        assert ranks.close() == [0, -signal.SIGKILL, 0, 0]


@pytest.mark.parametrize("case", ["failing_before", "failing_launch"])
def test_a_rank_that_fails_breaks_the_groups_of_its_collectives(case: str):
    """These ranks are not shared: their connections are cut while one waits in the collective."""
    with Ranks() as ranks:
        for text in ranks.run("faults", case):
            assert "rank 1 failed before all_reduce(add) float32[4] at " in text
            assert "MemoryError: no room" in text
        assert ranks.close() == [0, 0]


def test_the_report_has_the_last_collectives(ranks: Ranks):
    for text in ranks.run("faults", "reported"):
        first, second, third = text.splitlines()[1:4]
        assert re.search(r"0 done: all_reduce\(add\) float32\[2\] at .*faults.py:\d+; recorded [\d:.]+, posted", first)
        assert "1 done: all_reduce(add) float32[3]" in second
        assert "- recorded: a collective at " in third
