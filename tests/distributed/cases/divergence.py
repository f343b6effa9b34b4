"""Ranks that run different ops between equal collectives. Each function runs on both ranks."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import lazytpu
from lazytpu.distributed import world


def reads_in_any_order() -> None:
    """One rank reads the second of two results first: both run the collectives in recorded order."""
    first, two = torch.ones(2, device="tpu"), torch.full((2,), 10.0, device="tpu")
    dist.all_reduce(first)
    dist.all_reduce(two)
    values = (two, first) if dist.get_rank() else (first, two)
    assert sorted(value[0].item() for value in values) == [2.0, 20.0]


def unread_results() -> None:
    """One rank reads no result; the other one gets its collective all the same."""
    mine = torch.ones(3, device="tpu")
    dist.all_reduce(mine)
    if dist.get_rank() == 0:
        assert mine.tolist() == [2.0] * 3
    del mine
    dist.barrier()


def a_rank_that_sleeps() -> None:
    """Rank 1 has recorded the collective that rank 0 waits for, and then sleeps."""
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
    """Rank 1 has recorded the collective that rank 0 waits for, and keeps recording without a read."""
    busy, world.BUSY = world.BUSY, 0.5
    start = time.monotonic()
    with lazytpu.mode("lazy"):
        mine, local = torch.ones(3, device="tpu"), torch.ones(3, device="tpu")
        dist.all_reduce(mine)
        if dist.get_rank() == 0:
            assert mine.tolist() == [2.0] * 3
            assert time.monotonic() - start < 5, "rank 1 was made to launch it"
        while dist.get_rank() and time.monotonic() - start < 6:
            local * 2
            time.sleep(0.01)
    assert mine.tolist() == [2.0] * 3
    world.BUSY = busy


def a_read_that_leaves_a_collective_at_sizes_that_vary() -> None:
    """A read leaves a collective pending at varying sizes: states behind it are not derived from states without it."""

    def step(size: int, reduced: bool) -> None:
        lazytpu.mark_step()
        scaled = x[:size] * 2
        if reduced:
            dist.all_reduce(scaled)
        if dist.get_rank() == 0:
            assert (y + 1).sum().item() == 6
        behind = x[:size] * 3
        assert (scaled.tolist(), behind.tolist()) == ([4.0 if reduced else 2.0] * size, [3.0] * size)

    x, y = torch.ones(16).to("tpu"), torch.ones(3).to("tpu")
    for size in (9, 11, 13, 12):
        step(size, reduced=False)
    for size in (10, 14):
        step(size, reduced=True)
