"""Train a model whose layers are spread over the devices, by torch.distributed.pipelining:

    torchrun --nproc-per-node 2 examples/distributed/pipeline.py

Each process has one stage, and microbatches pass through the stages (1F1B). With "cpu" as argument it is the same on
gloo; without torchrun, in one process, the model trains whole.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

device = sys.argv[1] if len(sys.argv) > 1 else "tpu"
for name, value in (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", 0)):
    os.environ.setdefault(name, str(value))  # without torchrun
dist.init_process_group("gloo" if device == "cpu" else "tpu")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
layers = [torch.nn.Linear(1, 32), torch.nn.GELU(), torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 1)]
bounds = [round(stage * len(layers) / size) for stage in range(size + 1)]
model = torch.nn.Sequential(*layers[bounds[rank] : bounds[rank + 1]]).to(device)
stage = PipelineStage(model, rank, size, torch.device(device))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.linspace(-3, 3, 64).unsqueeze(1)
inputs = [x.to(device)] if rank == 0 else []
target = torch.sin(x).to(device) if rank == size - 1 else None

for step in range(21):
    optimizer.zero_grad()
    losses: list[torch.Tensor] = []
    schedule.step(*inputs, target=target, losses=losses)
    optimizer.step()
    if step % 10 == 0 and rank == size - 1:
        print(f"step {step}: loss {torch.stack(losses).mean().item():.5f}")

dist.destroy_process_group()
