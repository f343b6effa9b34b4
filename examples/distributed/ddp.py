"""Data-parallel training with plain DistributedDataParallel: `torchrun --nproc-per-node 2 examples/distributed/ddp.py`.

The only lines that know of the device are those that say "tpu"; with "cpu" it is the same training on gloo.
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

device = sys.argv[1] if len(sys.argv) > 1 else "tpu"
dist.init_process_group("gloo" if device == "cpu" else "tpu")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).to(device)
parallel = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.linspace(-3, 3, 256).unsqueeze(1)[dist.get_rank() :: dist.get_world_size()].to(device)  # this rank's part
y = torch.sin(2 * x)

for step in range(101):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(parallel(x), y)
    loss.backward()
    optimizer.step()
    if step % 50 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.5f}")

dist.destroy_process_group()
