"""Train a small Llama of transformers, its parameters sharded by Hugging Face accelerate (FSDP2):

    torchrun --nproc-per-node 2 examples/distributed/train_accelerate.py

accelerate finds the device and the process group by itself. Without torchrun it is the same in one process; then "cpu"
as argument leaves it on the CPU.
"""

import os
import sys
from typing import Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from transformers import LlamaConfig, LlamaForCausalLM

device = sys.argv[1] if len(sys.argv) > 1 else "tpu"
sharded = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
several = int(os.environ.get("WORLD_SIZE", "1")) > 1
accelerator = Accelerator(cpu=device == "cpu", fsdp_plugin=sharded if several else None)
torch.manual_seed(0)
sizes: Any = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, tie_word_embeddings=False, **sizes))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
tokens: Any = torch.randint(128, (32, 16), generator=torch.Generator().manual_seed(1))
batches = torch.utils.data.DataLoader(tokens, batch_size=4 // accelerator.num_processes)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

for step, batch in enumerate(batches):
    loss = model(input_ids=batch, labels=batch).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    mean: Any = accelerator.reduce(loss.detach(), "mean")
    if accelerator.is_main_process:
        print(f"step {step}: loss {mean.item():.4f}")

accelerator.end_training()
