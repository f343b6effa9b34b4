"""Groups of four ranks. Each function runs on all of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def groups() -> None:
    """Two groups at once, one in another order than the ranks', and all."""
    rank = dist.get_rank()
    pairs: list[Any] = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = torch.tensor([float(rank)], device="tpu")
    dist.all_reduce(mine, group=pairs[rank % 2])
    assert mine.tolist() == [[2.0], [4.0]][rank % 2]
    three: Any = dist.new_group([3, 0, 1])
    if rank != 2:
        whole = torch.zeros(3, device="tpu")
        dist.all_gather_single(whole, torch.tensor([float(rank)], device="tpu"), group=three)
        assert whole.tolist() == [float(member) for member in dist.get_process_group_ranks(three)]
        sent = torch.tensor([float(rank)], device="tpu")
        dist.broadcast(sent, 3, group=three)
        assert sent.tolist() == [3.0]
    dist.all_reduce(mine)
    assert mine.tolist() == [12.0]


def hybrid_sharding() -> None:
    """FSDP2 on a mesh of replicas and shards: gradients are those of all data."""
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
