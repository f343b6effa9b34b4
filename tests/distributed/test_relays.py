"""Jobs whose ranks reach the helper process through relays, two ranks each, in real processes. The protocol is in
test_protocol.py."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest

from tests import zygote
from tests.distributed.ranks import ROOT, Ranks, environment, free_port


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
        assert "the helper process of this job is gone, or the relay process of ranks 2 to 3" in text


JOINS = """
import datetime, os, sys, time
import torch, torch.distributed as dist
from lazytpu.distributed import starting
from lazytpu.runtime.cache import programs
from tests.compiling import QUICK

programs.OPTIONS.update(QUICK)
starting.FAN_IN = starting.DIRECT = 2
rank, late, seconds = int(os.environ["RANK"]), float(sys.argv[1]), float(sys.argv[2])
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 4, rank == 0)
if rank == 2:
    time.sleep(late)
timeout = datetime.timedelta(seconds=seconds)
for _ in range(2):
    try:
        dist.init_process_group(store=store, rank=rank, world_size=4, timeout=timeout)
        x = torch.ones(4, device="tpu") * 2
        dist.all_reduce(x)
        print(x.tolist())
    except RuntimeError as error:
        print(error)
        break
    dist.destroy_process_group()
store.set(f"over {rank}", "")
store.wait(["over 0", "over 1", "over 3"], datetime.timedelta(seconds=60))  # rank 0 has the store
"""


@pytest.mark.parametrize(("late", "seconds"), [(6.0, 10.0), pytest.param(30.0, 4.0, marks=pytest.mark.long)])
def test_a_rank_that_starts_a_relay_is_late(late: float, seconds: float):
    """The other rank of its relay connects without it. If it does not come at all, the error names it alone."""
    port = free_port()
    ranks = [
        zygote.Process(
            ["-c", JOINS, str(late), str(seconds)],
            env=environment(rank, 4, port) | {"PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        for rank in range(4)
    ]
    missing = late > seconds
    for rank in (0, 1, 3):
        printed, said = ranks[rank].communicate(100)
        if missing:
            assert re.search(r"waited 4 s .*, for rank 2 \(its last: none\)\. ", printed), printed + said
        else:
            assert printed.endswith("[8.0, 8.0, 8.0, 8.0]\n" * 2), printed + said
    ranks[2].kill()
    ranks[2].wait(60)
