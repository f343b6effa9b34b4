"""Training with plain FSDP2: `torchrun --nproc-per-node 2 examples/distributed/fsdp2.py`.

`examples/pod.py` compiles the step of this script for 256 chips, on one machine.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

device = sys.argv[1] if len(sys.argv) > 1 else "tpu"
dist.init_process_group("gloo" if device == "cpu" else "tpu")
torch.manual_seed(0)
mesh = init_device_mesh(device, (dist.get_world_size(),))
model = torch.nn.Sequential(
    torch.nn.Linear(1, 256), torch.nn.GELU(), torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 1)
).to(device)
fully_shard(model[2], mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.linspace(-3, 3, 256).unsqueeze(1)[dist.get_rank() :: dist.get_world_size()].to(device)  # this rank's part
y = torch.sin(2 * x)


def step() -> torch.Tensor:
    """Train on this rank's part, and return its loss."""
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


if __name__ == "__main__":
    for number in range(51):
        loss = step()
        if number % 25 == 0 and dist.get_rank() == 0:
            print(f"step {number}: loss {loss.item():.5f}")
    dist.destroy_process_group()
