"""A rank, a relay or the helper process is killed or stopped at a random time of a job with overlapping groups: every
other rank gets an error with the line of its own call that names the lost ranks, in time, and no wrong value; and the
ranks that can still reach each other go on in a group of their own."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import SECONDS, Ranks

SEEDS = int(os.environ.get("DIVERGENT", "4"))
TIMEOUT = 3.0  # seconds: that of groups in which a process stops
LATEST = {"kill": 5.0, "raise": 10.0, "stop": 16.0}  # seconds from the fault to the error of ranks that can go on
CASE = "tests/distributed/cases/attacks.py:"


@dataclass(frozen=True)
class Attack:
    """A fault of a job of `size` ranks: something happens to the process `pid`, which is `what`, and the ranks `lost`
    cannot go on with the others."""

    what: str
    how: str
    size: int
    pid: int
    lost: list[int]

    @property
    def survivors(self) -> list[int]:
        """The ranks that can still reach each other."""
        return [rank for rank in range(self.size) if rank not in self.lost]


def control_processes(ranks: Ranks) -> dict[str, int]:
    """Return the helper process, as "helper", and the relays, as "ranks 0 to 1"."""
    pids: dict[str, int] = {}
    for process in ranks.processes:
        for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
            for child in map(int, children.read_text().split()):
                arguments = Path(f"/proc/{child}/cmdline").read_text().split("\0")
                if "helper" in arguments:
                    pids["helper"] = child
                elif "relays" in arguments:
                    pids[arguments[arguments.index("relays") + 2]] = child
    return pids


def attack_of(draw: random.Random, ranks: Ranks) -> Attack:
    """Draw a fault."""
    pids = control_processes(ranks)
    relays = [name for name in pids if name != "helper"]
    kinds = ["rank", "raise"] + ["relay"] * 4 * bool(relays) + ["helper"] * (draw.random() < 0.2)
    what = draw.choice(kinds)
    how = "raise" if what == "raise" else draw.choice(("kill", "stop", "pause"))
    everyone = list(range(ranks.size))
    if what == "helper":
        return Attack(what, how, ranks.size, pids["helper"], everyone)
    if what == "relay":
        name = draw.choice(relays)
        _, first, _, last = name.split()
        return Attack(what, how, ranks.size, pids[name], everyone[int(first) : int(last) + 1])
    victim = draw.choice(everyone[1:])  # rank 0 has torch's store
    return Attack(what, how, ranks.size, ranks.processes[victim].pid, [victim])


@pytest.mark.parametrize("seed", range(1, 1 + max(2, SEEDS // 4)))
def test_errors_name_the_lost_ranks(seed: int, tmp_path: Path):
    """`make distributed` runs 50 of them."""
    draw = random.Random(seed)
    size, fan_in = draw.choice([(2, None), (3, None), (4, None), (3, 2), (4, 2), (4, 2), (5, 2), (6, 2)])
    with Ranks(size, fan_in) as ranks:
        attack = attack_of(draw, ranks)
        is_pause = attack.how == "pause"
        ranks.start(
            "attacks",
            "steps",
            seed=seed,
            timeout=TIMEOUT if attack.how == "stop" else 15.0 if attack.what == "relay" else 40.0,
            lasts=30.0 if attack.how in ("kill", "stop") else 4.0,
            survivors=[] if is_pause else attack.survivors,
            raises=attack.lost[0] if attack.how == "raise" else None,
            ready=str(tmp_path / "ready"),
        )
        end = time.monotonic() + SECONDS
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        time.sleep(draw.random() * 3)
        begin = time.monotonic()
        if attack.how != "raise":
            os.kill(attack.pid, signal.SIGKILL if attack.how == "kill" else signal.SIGSTOP)
        if is_pause:
            time.sleep(draw.choice([0.05, 0.3, 1.5]))
            os.kill(attack.pid, signal.SIGCONT)
        try:
            for rank in range(size):
                if is_pause or attack.what in ("relay", "helper") or rank not in attack.lost:
                    _check(attack, rank, begin, ranks.answer(rank))
        finally:
            if attack.how == "stop" and attack.what != "rank":  # nobody else ends it
                os.kill(attack.pid, signal.SIGKILL)


def _check(attack: Attack, rank: int, begin: float, answer: dict[str, Any]) -> None:
    """Check the outcome of a rank."""
    assert "result" in answer, f"{attack}: rank {rank}: {answer['error']}"
    outcome = answer["result"]
    shown = f"{attack}: rank {rank}: {outcome}"
    if attack.how == "pause":
        assert outcome["error"] == "", shown
        return
    assert CASE in outcome["error"], shown
    assert outcome["failed"] - begin < (LATEST[attack.how] if rank in attack.survivors else 30.0), shown
    assert outcome["again"] == "", shown
    if rank in attack.survivors:
        assert any(f"rank {lost}" in outcome["error"] for lost in attack.lost), shown
    elif attack.how == "kill":  # without an answer of the helper, some rank may be alone in a collective
        assert "the helper process of this job is gone" in outcome["error"], shown
    if attack.how == "raise":
        assert "raised MemoryError: no room" in outcome["error"], shown
