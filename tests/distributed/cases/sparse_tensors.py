"""Collectives of sparse tensors. Each function runs on both ranks."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp


def sparse() -> None:
    """Sums and averages as gloo computes them on the CPU: with different lengths per rank, and without elements.
    Unsupported collectives raise an error with a remedy."""
    rank = dist.get_rank()
    make = functools.partial(torch.sparse_coo_tensor, check_invariants=False)
    for sample in (
        make(torch.tensor([[rank, 3, 3][: 2 + rank]]), torch.ones(2 + rank), (5,)),
        make(torch.zeros(1, rank, dtype=torch.int64), torch.ones(rank, 3), (4, 3)),
    ):
        mine = sample.to("tpu")
        dist.all_reduce(sample)
        dist.all_reduce(mine)
        assert mine.is_sparse and mine.is_coalesced() and mine.device.type == "tpu"
        torch.testing.assert_close(mine.cpu(), sample.coalesce())
    dist.all_reduce(mine, ReduceOp.AVG)
    torch.testing.assert_close(mine.cpu(), sample.coalesce())
    with pytest.raises(NotImplementedError, match=r"broadcast of tensors of layout torch.sparse_coo .* \.to_dense\(\)"):
        dist.broadcast(mine, 0)
    with pytest.raises(RuntimeError, match=r"all_reduce of sparse tensors has no ReduceOp\.MAX"):
        dist.all_reduce(mine, ReduceOp.MAX)
    mismatched = make(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1), (2 + rank,)).to("tpu")
    with pytest.raises(ValueError, match=r"rank 0: \[2\], 1 of them sparse; rank 1: \[3\]"):
        dist.all_reduce(mismatched)


def sparse_gradients() -> None:
    """Sparse gradients of an embedding under DistributedDataParallel, compared with the CPU."""
    losses: list[list[float]] = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        inner = torch.nn.Sequential(torch.nn.Embedding(9, 3, sparse=True), torch.nn.Linear(3, 2)).to(device)
        model = torch.nn.parallel.DistributedDataParallel(inner)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses.append([])
        for step in range(2):
            words = torch.tensor([1, step, 3 + dist.get_rank()], device=device)
            loss = model(words).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    torch.testing.assert_close(*map(torch.tensor, losses))
