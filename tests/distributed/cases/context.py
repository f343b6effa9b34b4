"""Attention over sequences that are split across ranks, compared with one process. Each function runs on both ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard, set_rotate_method

LENGTH, WIDTH, HEADS = 16, 8, 2


class Block(torch.nn.Module):
    """Attention with its projections."""

    def __init__(self):
        super().__init__()
        self.mix, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def _trained(device: str, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return the output and the gradients of a block; on "tpu" each rank has its part of the sequence."""
    torch.manual_seed(0)
    block = Block().to(dtype)
    x, target = torch.randn(2, LENGTH, WIDTH).to(dtype), torch.randn(2, LENGTH, WIDTH).to(dtype)
    if device == "cpu":
        out = block(x)
        (out * target).sum().backward()
        return [out, *(p.grad for p in block.parameters())]
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    block, x, target = block.to("tpu"), x.to("tpu"), target.to("tpu")
    with context_parallel(mesh, buffers=[x, target], buffer_seq_dims=[1, 1]):
        assert x.shape[1] == LENGTH // dist.get_world_size()
        out = block(x)
        (out * target).sum().backward()
        (unsharded,) = context_parallel_unshard(mesh, [out.detach()], [1])
    assert x.shape[1] == LENGTH
    grads = [p.grad for p in block.parameters()]
    for grad in grads:
        dist.all_reduce(grad)
    return [unsharded.cpu(), *(grad.cpu() for grad in grads)]


def causal() -> None:
    """Each rank has an early and a late part of the sequence, for an equal amount of work."""
    for rotation in ("allgather", "alltoall"):
        set_rotate_method(rotation)
        torch.testing.assert_close(_trained("tpu"), _trained("cpu"), rtol=1e-4, atol=1e-5)
    set_rotate_method("allgather")


def half_precision() -> None:
    together, alone = (_trained(device, torch.bfloat16) for device in ("tpu", "cpu"))
    torch.testing.assert_close(together, alone, rtol=0.05, atol=0.1)


def heads() -> None:
    """DTensors whose heads are sharded, without context parallelism."""
    torch.manual_seed(0)
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    plain = [torch.randn(2, HEADS, 6, 4, requires_grad=True) for _ in range(3)]
    alone = F.scaled_dot_product_attention(*plain, is_causal=True)
    alone.sum().backward()
    shards = [distribute_tensor(p.detach().to("tpu"), mesh, [Shard(1)]).requires_grad_() for p in plain]
    together = F.scaled_dot_product_attention(*shards, is_causal=True)
    assert isinstance(together, DTensor) and together.placements == (Shard(1),)
    torch.testing.assert_close(together.full_tensor().cpu(), alone)
    together.sum().backward()
    for shard, full in zip(shards, plain, strict=True):
        torch.testing.assert_close(shard.grad.full_tensor().cpu(), full.grad)


def masks_and_grouped_heads() -> None:
    """torch decomposes these calls into ops with sharding rules."""
    torch.manual_seed(0)
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    query, key, value = torch.randn(2, 4, 6, 4), torch.randn(2, 2, 6, 4), torch.randn(2, 2, 6, 4)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    shards = [distribute_tensor(x.to("tpu"), mesh, [Shard(1)]) for x in (query, key, value)]
    everywhere = distribute_tensor(mask.to("tpu"), mesh, [Replicate()])
    together = F.scaled_dot_product_attention(*shards, everywhere, enable_gqa=True)
    alone = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
    torch.testing.assert_close(together.full_tensor().cpu(), alone)
