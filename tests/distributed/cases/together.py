"""Trainings whose cuts run as one program with their collectives (`collectives="together"`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import lazytpu
from lazytpu.distributed import world
from lazytpu.engine.cutting import windows


@contextmanager
def together(recurrences: int = 2, background: float = 0.0) -> Iterator[None]:
    """Launch recurring cuts with collectives as one program, compiled at once unless in the `background`. A rank that
    is slow between two ops is not cut for the others, so that its cuts are those of the script."""
    with (
        lazytpu.options(collectives="together", background_compile=background),
        patch.multiple(windows, RECURRENCES=recurrences),
        patch.multiple(world, STANDSTILL=2.0),
    ):
        yield


def counts() -> tuple[int, int]:
    """Return how many cuts ran as one program, and how many in pieces since ranks differed."""
    lazytpu.sync()
    counted = lazytpu.metrics()
    return counted["windows"], counted["split_windows"]


def trained(kind: str, steps: int, reads: bool = False, mesh: Any = None) -> list[float]:
    """Return the losses of some training steps. With `reads`, rank 0 reads a loss and a gradient in every third one."""
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.Tanh(), torch.nn.Linear(24, 8)) for _ in range(2)]
    model: Any = torch.nn.Sequential(*layers).to("tpu")
    if kind == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=0.001)
    else:
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(dist.get_rank())).to("tpu")
    losses: list[torch.Tensor] = []
    for step in range(steps):
        loss = model(x).square().mean()
        loss.backward()
        if reads and dist.get_rank() == 0 and step % 3 == 2:
            assert loss.item() > 0
            assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        lazytpu.mark_step()
    return torch.stack(losses).tolist()
