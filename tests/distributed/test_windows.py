"""Cuts that run as one program with their collectives, in real processes. The protocol is in test_protocol.py."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.ranks import SECONDS, Ranks, cases

SEEDS = int(os.environ.get("DIVERGENT", "2"))
BY_THEMSELVES = ("fails", "random_faults", "random_programs_together")  # cases with arguments


@pytest.mark.parametrize("case", [name for name in cases("windows") if name not in BY_THEMSELVES])
def test_windows(ranks: Ranks, case: str):
    ranks.run("windows", case)


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    """Four ranks."""
    group = Ranks(4)
    yield group
    assert group.close() == [0] * 4


@pytest.mark.parametrize("case", cases("mesh_windows"))
def test_windows_of_meshes(four: Ranks, case: str):
    programs = four.run("mesh_windows", case)
    assert len(set(programs)) == 1
    assert programs[0] is None or "replica_group_mesh_axes" in programs[0]


@pytest.mark.parametrize("seed", range(200, 200 + SEEDS))
def test_random_programs_of_three_ranks(three: Ranks, seed: int):
    """`make distributed` runs 200 of them."""
    three.run("windows", "random_programs_together", seed=seed)


@pytest.mark.parametrize("how", ["raise", "kill", "stop"])
def test_a_rank_that_fails_after_the_answer_breaks_the_group(how: str):
    with Ranks() as ranks:
        ranks.start("windows", "fails", where="inside", how=how)
        texts = ranks.answer(0)["result"]
        assert len(texts) >= 2, "a result that needs no other rank may be launched ahead"
        for text in texts:
            assert "rank 1" in text
        if how == "raise":
            texts = ranks.answer(1)["result"]
            assert "MemoryError: no room" in texts[0]
        elif how == "stop":
            os.kill(ranks.processes[1].pid, signal.SIGCONT)
            assert "rank 1" in ranks.answer(1)["result"][-1]


def test_results_that_need_no_other_rank_survive_a_killed_one():
    """The control plane answers with the loss of the rank, and the pieces run."""
    with Ranks() as ranks:
        ranks.start("windows", "fails", where="before", how="kill")
        texts = ranks.answer(0)["result"]
        assert len(texts) == 2, "what is computed before the collective is there"
        for text in texts:
            assert "rank 1 was killed or crashed" in text


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_faults(seed: int):
    """Every other rank gets an error, and none waits forever. `make distributed` runs 200 of them."""
    with Ranks(3 + seed % 2) as ranks:
        ranks.start("windows", "random_faults", seed=seed)
        victim = random.Random(seed)
        how, where = victim.choice(("raise", "kill", "stop")), victim.choice(("before", "inside"))
        texts = _answers(ranks)
        assert len(texts) >= ranks.size - 1
        for rank, text in texts.items():
            number, *_, error = text.split(" ", 3)
            assert "Error: " in error or rank == int(number), f"{how} {where}: rank {rank} had no error"


def _answers(ranks: Ranks) -> dict[int, str]:
    """Return the answers of the ranks that do not end; a stopped rank continues once the others have answered."""
    texts: dict[int, str] = {}
    pending = list(range(ranks.size))
    end = time.monotonic() + SECONDS
    while pending:
        pending = [rank for rank in pending if not ranks.has_ended(rank)]
        stopped = [rank for rank in pending if _is_stopped(ranks.processes[rank].pid)]
        running = [rank for rank in pending if rank not in stopped]
        for rank in () if running else stopped:
            os.kill(ranks.processes[rank].pid, signal.SIGCONT)
        if not (running or stopped):
            return texts
        running = running or stopped
        rank = running[0]
        answered = ranks.has_answer(rank, 0.5)
        if ranks.has_ended(rank) or (not answered and time.monotonic() < end):
            continue
        answer = ranks.answer(rank)
        assert "result" in answer, f"rank {rank}: {answer}"
        texts[rank] = answer["result"]
        pending.remove(rank)
    return texts


def _is_stopped(pid: int) -> bool:
    """Return whether a process has stopped, by its state in /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return False
