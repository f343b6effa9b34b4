"""Ranks that do different things between equal collectives. Each function runs on both ranks."""

from __future__ import annotations

import random
import time

import torch
import torch.distributed as dist

import lazytpu


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


def random_programs(seed: int) -> None:
    """Each rank computes, reads and cuts at places of its own; the collectives and their results are the same."""
    rank = dist.get_rank()
    common, own = random.Random(seed), random.Random(f"{seed} {rank}")
    values = [torch.arange(4.0) + rank, torch.ones(4) * (rank + 1)]
    theirs = [torch.arange(4.0) + 1 - rank, torch.ones(4) * (2 - rank)]
    device = [value.to("tpu") for value in values]
    for _ in range(12):
        i, action = common.randrange(2), common.choice(("reduce", "gather", "compute", "broadcast"))
        if action == "reduce":
            dist.all_reduce(device[i])
            values[i] = theirs[i] = values[i] + theirs[i]
        elif action == "gather":
            whole = torch.zeros(8, device="tpu")
            dist.all_gather_single(whole, device[i])
            device[i] = whole[2:6].clone()
            pair = (values[i], theirs[i]) if rank == 0 else (theirs[i], values[i])
            values[i] = theirs[i] = torch.cat(pair)[2:6]
        elif action == "broadcast":
            dist.broadcast(device[i], 1)
            values[i] = theirs[i] = theirs[i] if rank == 0 else values[i]
        else:
            device[i] = device[i] * 0.5 + 1
            values[i], theirs[i] = values[i] * 0.5 + 1, theirs[i] * 0.5 + 1
        chance = own.random()
        if chance < 0.2:
            torch.testing.assert_close(device[own.randrange(2)].cpu().isfinite().all(), torch.tensor(True))
        elif chance < 0.3:
            lazytpu.mark_step()
        elif chance < 0.4:
            (device[0] + device[1]).sum().item()
    for got, expected in zip(device, values, strict=True):
        torch.testing.assert_close(got.cpu(), expected)
