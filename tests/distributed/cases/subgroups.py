"""Groups of four ranks. Each function runs on all of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def groups() -> None:
    """Two groups at once, one of them in another order than the ranks, all ranks, halves by splitting, and a gloo
    group."""
    rank = dist.get_rank()
    pairs: list[Any] = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = torch.tensor([float(rank)], device="tpu")
    dist.all_reduce(mine, group=pairs[rank % 2])
    assert mine.tolist() == [[2.0], [4.0]][rank % 2]
    three: Any = dist.new_group([3, 0, 1])
    if rank != 2:
        gathered = torch.zeros(3, device="tpu")
        dist.all_gather_single(gathered, torch.tensor([float(rank)], device="tpu"), group=three)
        assert gathered.tolist() == [float(member) for member in dist.get_process_group_ranks(three)]
        sent = torch.tensor([float(rank)], device="tpu")
        dist.broadcast(sent, 3, group=three)
        assert sent.tolist() == [3.0]
    dist.all_reduce(mine)
    assert mine.tolist() == [12.0]
    half: Any = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    assert dist.get_process_group_ranks(half) == [rank // 2 * 2, rank // 2 * 2 + 1]
    mine = torch.tensor([float(rank)], device="tpu")
    dist.all_reduce(mine, group=half)
    assert mine.tolist() == [[1.0], [5.0]][rank // 2]
    dist.barrier(half)
    messages: Any = dist.new_group(backend="gloo")  # on the CPU alone
    on_host = torch.ones(1)
    dist.all_reduce(on_host, group=messages)
    assert on_host.tolist() == [4.0]


def hybrid_sharding() -> None:
    """FSDP2 on a mesh of replicas and shards: gradients are computed over all data."""
    mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model, alone = torch.nn.Linear(8, 4).to("tpu"), torch.nn.Linear(8, 4)
    alone.load_state_dict(model.state_dict())
    fully_shard(model, mesh=mesh)
    data = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    model(data.chunk(4)[dist.get_rank()].to("tpu")).pow(2).mean().backward()
    alone(data).pow(2).mean().backward()
    for got, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        grad: Any = got.grad
        assert wanted.grad is not None
        torch.testing.assert_close(grad.full_tensor().cpu(), wanted.grad, rtol=1e-4, atol=1e-5)


def many() -> None:
    """Any number of ranks: reductions, gathers, halves, neighbours, and parts of unequal size."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((3,), float(rank), device="tpu")
    total = x.clone()
    dist.all_reduce(total)
    assert total.tolist() == [size * (size - 1) / 2] * 3
    gathered = torch.zeros(size * 3, device="tpu")
    dist.all_gather_single(gathered, x)
    assert gathered.tolist() == [float(r) for r in range(size) for _ in range(3)]
    halves: list[Any] = [dist.new_group(list(range(start, size, 2))) for start in range(2)]
    half = torch.ones(2, device="tpu")
    dist.all_reduce(half, group=halves[rank % 2])
    assert half.tolist() == [float(len(range(rank % 2, size, 2)))] * 2
    came = torch.zeros(3, device="tpu")
    ring = [
        dist.P2POp(dist.isend, x, (rank + 1) % size),
        dist.P2POp(dist.irecv, came, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    assert came.tolist() == [float((rank - 1) % size)] * 3
    sent = torch.arange(size * (size + 1) / 2, device="tpu") + 100 * rank
    received = torch.zeros(size * (rank + 1), device="tpu")
    dist.all_to_all_single(received, sent, [rank + 1] * size, list(range(1, size + 1)))
    before = rank * (rank + 1) // 2
    assert received.tolist() == [100.0 * r + before + i for r in range(size) for i in range(rank + 1)]
    dist.barrier()
