"""Train a small Llama by transformers' Trainer, its parameters sharded (FSDP2):

    torchrun --nproc-per-node 2 examples/distributed/train_trainer.py

The Trainer finds the device and the process group by itself. Without torchrun it is the same in one process; then "cpu"
as argument leaves it on the CPU.
"""

import os
import sys
import tempfile
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

several = int(os.environ.get("WORLD_SIZE", "1"))
sharded: dict[str, Any] = {"fsdp": True, "fsdp_config": {"version": 2}} if several > 1 else {}
torch.manual_seed(0)
sizes: Any = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, tie_word_embeddings=False, **sizes))
tokens = torch.randint(128, (32, 16), generator=torch.Generator().manual_seed(1))


class Printing(TrainerCallback):
    """One line for each step."""

    def on_log(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and "loss" in kwargs["logs"]:
            print(f"step {state.global_step}: loss {float(kwargs['logs']['loss']):.4f}")


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=4 // several,
        max_steps=8,
        learning_rate=3e-3,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu="cpu" in sys.argv,
        **sharded,
    )
    data: Any = [{"input_ids": row, "labels": row} for row in tokens]
    Trainer(model, arguments, train_dataset=data, callbacks=[Printing()]).train()
