"""Random steps of overlapping groups, while the test kills or stops a rank, a relay or the helper process at any time.
Runs on all ranks."""

from __future__ import annotations

import datetime
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import lazytpu
from tests.distributed.cases.together import together

OPS = dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN


def _partitions(size: int, draw: random.Random) -> list[list[list[int]]]:
    """Return partitions of the ranks into groups: two into one group, and others, whose groups overlap."""
    everyone = list(range(size))
    partitions = [[everyone], [everyone]]
    for _ in range(draw.randint(0, 3)):
        shuffled, at = draw.sample(everyone, size), draw.randint(1, size)
        partitions.append([sorted(ranks) for ranks in (shuffled[:at], shuffled[at:]) if ranks])
    if size == 4 and draw.random() < 0.5:  # rows and columns of a mesh
        partitions += [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]
    return partitions


def steps(
    seed: int, timeout: float, lasts: float, survivors: Sequence[int], raises: int | None, ready: str
) -> dict[str, Any]:
    """Take random steps for `lasts` seconds, or until an error. The file `ready` exists once XLA has connected the
    ranks, which has a timeout of its own. Rank `raises` raises in the middle. After an error the
    `survivors` make a group of their own. Return the error, the time at which it was raised, and the error of that
    group."""
    size, rank, draw = dist.get_world_size(), dist.get_rank(), random.Random(seed)
    of_rank = random.Random(f"{seed} {rank}")
    partitions, groups = _partitions(size, draw), list[Any]()
    for partition in partitions:
        candidates = [dist.new_group(ranks, timeout=datetime.timedelta(seconds=timeout)) for ranks in partition]
        groups.append(next(group for ranks, group in zip(partition, candidates, strict=True) if rank in ranks))
    for group in groups:
        connected = torch.ones(4, device="tpu")
        dist.all_reduce(connected, group=group)
        connected.tolist()
    dist.barrier()
    Path(ready).touch()
    kinds = [
        [(draw.randrange(len(partitions)), draw.randrange(3)) for _ in range(draw.randint(1, 12))] for _ in range(2)
    ]
    reads, sleeps = draw.choice([(0.0, 0.0), (0.2, 0.05), (0.6, 0.0)])
    x, expected = torch.full((4,), rank + 1.0, device="tpu"), [1.0 + i for i in range(size)]
    error, again, number, is_over = "", "", 0, torch.zeros(1)
    start = time.monotonic()
    with together(recurrences=draw.randrange(2)):
        try:
            while not is_over[0]:
                for index, kind in draw.choice(kinds):
                    y = x * 0.5
                    dist.all_reduce(y, OPS[kind], groups[index])
                    x = (x + y) * 0.5
                    for ranks in partitions[index]:
                        reduced = 0.5 * (sum, max, min)[kind](expected[i] for i in ranks)
                        for i in ranks:
                            expected[i] = (expected[i] + reduced) * 0.5
                if max(expected) > 1e3:
                    x, expected = x * 1e-3, [1e-3 * value for value in expected]
                if of_rank.random() < reads:
                    x.tolist()  # a cut that the other ranks do not have
                if of_rank.random() < sleeps:
                    time.sleep(of_rank.random() * 0.1)
                lazytpu.mark_step()
                if number % 4 == 3:
                    torch.testing.assert_close(x.cpu(), torch.full((4,), expected[rank]), rtol=1e-4, atol=1e-5)
                number += 1
                if rank == raises and time.monotonic() - start > lasts / 3:  # nothing catches it
                    sys.excepthook(MemoryError, MemoryError("no room"), None)
                    os._exit(1)
                if number % 8 == 0:  # all ranks end in the same step
                    is_over[0] = time.monotonic() - start > lasts
                    dist.all_reduce(is_over, dist.ReduceOp.MAX, groups[0])
        except RuntimeError as raised:
            error = f"{type(raised).__name__}: {raised}"
    failed = time.monotonic()
    try:
        if error and rank in survivors:
            _go_on(survivors)
    except RuntimeError as raised:
        again = f"{type(raised).__name__}: {raised}"
    assert (torch.ones(4, device="tpu") + 1).tolist() == [2.0] * 4, "what needs no other rank goes on"
    return {"error": error, "failed": failed, "again": again, "steps": number}


def _go_on(survivors: Sequence[int]) -> None:
    """Reduce in a group of the survivors."""
    group: Any = dist.new_group(list(survivors), timeout=datetime.timedelta(seconds=30), use_local_synchronization=True)
    for _ in range(4):
        x = torch.full((3,), dist.get_rank() + 1.0, device="tpu") * 2
        dist.all_reduce(x, group=group)
        lazytpu.mark_step()
        assert x.tolist() == [2.0 * sum(i + 1 for i in survivors)] * 3
