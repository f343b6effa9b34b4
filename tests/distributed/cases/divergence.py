"""Ranks that do different things between equal collectives. Each function runs on both ranks."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import lazytpu
from lazytpu.distributed import world


def reads_in_any_order() -> None:
    """The second of two results is read first on one rank: both run the collectives in their order."""
    one, two = torch.ones(2, device="tpu"), torch.full((2,), 10.0, device="tpu")
    dist.all_reduce(one)
    dist.all_reduce(two)
    values = (two, one) if dist.get_rank() else (one, two)
    assert sorted(value[0].item() for value in values) == [2.0, 20.0]


def results_that_nobody_reads() -> None:
    """On one rank; the other waits for that rank all the same."""
    mine = torch.ones(3, device="tpu")
    dist.all_reduce(mine)
    if dist.get_rank() == 0:
        assert mine.tolist() == [2.0] * 3
    del mine
    dist.barrier()


def a_rank_that_sleeps() -> None:
    """Rank 1 has recorded what rank 0 waits for, and then does something else."""
    mine = torch.ones(3, device="tpu")
    dist.all_reduce(mine)
    start = time.monotonic()
    if dist.get_rank() == 0:
        assert mine.tolist() == [2.0] * 3
        assert time.monotonic() - start < 5, "rank 1 was asked to launch it"
    else:
        time.sleep(6)
    dist.barrier()


def a_rank_that_records_on_and_on() -> None:
    """Rank 1 has recorded what rank 0 waits for, and does not stop to record; nothing there is read."""
    busy, world.BUSY = world.BUSY, 0.5
    start = time.monotonic()
    with lazytpu.mode("lazy"):
        mine, own = torch.ones(3, device="tpu"), torch.ones(3, device="tpu")
        dist.all_reduce(mine)
        if dist.get_rank() == 0:
            assert mine.tolist() == [2.0] * 3
            assert time.monotonic() - start < 5, "rank 1 was made to launch it"
        while dist.get_rank() and time.monotonic() - start < 6:
            own * 2
            time.sleep(0.01)
    assert mine.tolist() == [2.0] * 3
    world.BUSY = busy
