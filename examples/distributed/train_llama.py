"""Train a small Llama on several devices: sharded data parallelism (FSDP2) times tensor and sequence parallelism.

    torchrun --nproc-per-node 2 --max-restarts 1 examples/distributed/train_llama.py --tensor-parallel 2

The layout is that of TorchTitan: a mesh of (data, tensor), a plan for each module, `fully_shard`, and checkpoints. When
a process dies, torchrun starts all of them again, and they train on from the last checkpoint; so does a later run, with
any number of processes. With `--device cpu` it is the same training on gloo; without torchrun, in one process.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

CHARACTERS = 128  # the text is ASCII: a token is a byte


# ---- the model


class Attention(nn.Module):
    """Causal attention with rotary positions; each process of a tensor-parallel group has some of the heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.head_width = width // heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (f(x).view(batch, length, -1, self.head_width).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotated(q, rotation), rotated(k, rotation), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """Each pair (first half, second half) of [batch, heads, length, head width] turned by the angle of its position."""
    (a, b), (cos, sin) = x.chunk(2, -1), rotation
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int):
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width, eps=1e-5), Attention(width, heads)
        self.feed_forward_norm, self.feed_forward = nn.RMSNorm(width, eps=1e-5), FeedForward(width)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    """Logits of the next character at every position: [batch, length] to [batch, length, CHARACTERS]."""

    def __init__(self, layers: int, width: int, heads: int, length: int):
        super().__init__()
        self.tokens = nn.Embedding(CHARACTERS, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, CHARACTERS, bias=False)
        frequencies = 10000.0 ** -torch.linspace(0, 1, width // heads // 2 + 1)[:-1]
        angles = torch.arange(float(length))[:, None] * frequencies
        self.register_buffer("rotation", torch.stack([angles.cos(), angles.sin()]), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.rotation)
        return self.head(self.norm(x))


# ---- how it is spread over the devices


def parallelize(model: Llama, mesh: DeviceMesh) -> None:
    """Tensor and sequence parallelism in each row of the mesh, and shards of the parameters over its columns. Between
    the blocks each process has a part of the sequence."""
    tensor: Any = mesh["tensor"]
    if tensor.size() > 1:
        plan: dict[str, Any] = {
            "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        }
        parallelize_module(model, tensor, plan)
        gathered = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
        for block in model.blocks:
            plan = {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                ),
                **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
                "attention.out": RowwiseParallel(output_layouts=Shard(1)),
                "feed_forward_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(**gathered),
                **{f"feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")},
                "feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
            }
            parallelize_module(block, tensor, plan)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh["data"])


# ---- the text, and checkpoints


def batch_of(step: int, size: int, length: int, mesh: DeviceMesh) -> tuple[Tensor, Tensor]:
    """Return this process's windows of text for a step, and the character after each one. A step has the same windows
    on any mesh, and after a restart."""
    source = Path(sysconfig.get_paths()["stdlib"], "argparse.py").read_bytes()
    text = torch.frombuffer(bytearray(source), dtype=torch.uint8).clamp(max=CHARACTERS - 1).long()
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - length, (size, 1), generator=generator)
    windows = text[starts + torch.arange(length + 1)]
    mine = windows.chunk(mesh["data"].size())[mesh["data"].get_local_rank()]
    return mine[:, :-1], mine[:, 1:]


def newest(folder: Path) -> int:
    """Return the last step with a complete checkpoint, or 0; rank 0 decides for all ranks."""
    complete = [int(path.parent.name) for path in folder.glob("*/.metadata")]  # written last
    last = [max(complete, default=0)]
    dist.broadcast_object_list(last)
    return last[0]


def states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the states that a checkpoint holds."""
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """Load the last checkpoint, if there is one; the step that it is of."""
    step = newest(folder)
    if step:
        loaded = states(model, optimizer)
        load(loaded, checkpoint_id=folder / str(step))
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    return step


# ---- training


def train(args: argparse.Namespace, mesh: DeviceMesh) -> list[float]:
    """Train from the last checkpoint to step `args.steps`; the losses of these steps."""
    torch.manual_seed(0)
    model = Llama(args.layers, args.width, args.heads, args.length).to(args.device)
    parallelize(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = resume(model, optimizer, args.checkpoints)
    losses: list[float] = []
    for step in range(first + 1, args.steps + 1):
        inputs, targets = (part.to(args.device) for part in batch_of(step, args.batch, args.length, mesh))
        with loss_parallel() if mesh["tensor"].size() > 1 else nullcontext():
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean(loss, mesh))
        if dist.get_rank() == 0:
            print(f"step {step}: loss {losses[-1]:.4f}", flush=True)
        if step % args.every == 0:
            save(states(model, optimizer), checkpoint_id=args.checkpoints / str(step))
    return losses


def mean(loss: Tensor, mesh: DeviceMesh) -> float:
    """The loss of all of the step's windows."""
    whole = loss.full_tensor() if isinstance(loss, DTensor) else loss
    whole = whole.detach().clone()
    dist.all_reduce(whole, dist.ReduceOp.SUM, group=mesh["data"].get_group())
    return whole.item() / mesh["data"].size()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small Llama by FSDP2 and tensor parallelism.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--device", choices=("tpu", "cpu"), default="tpu", help="cpu is the same on gloo")
    add("--tensor-parallel", type=int, default=1, help="processes that share each layer; the others share the data")
    add("--steps", type=int, default=20, help="steps of the optimizer, those of the checkpoint included")
    add("--batch", type=int, default=4, help="windows of text in a step, on all devices")
    add("--length", type=int, default=32, help="characters in a window")
    add("--layers", type=int, default=2, help="blocks of the model")
    add("--heads", type=int, default=4, help="attention heads of a block")
    add("--width", type=int, default=32, help="width of the residual stream")
    add("--every", type=int, default=10, help="steps between checkpoints")
    add("--checkpoints", type=Path, default=Path("out/llama"), help="their folder, which all processes see")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    for name, value in (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", 0)):
        os.environ.setdefault(name, str(value))  # without torchrun
    dist.init_process_group("gloo" if args.device == "cpu" else "tpu")
    shape = dist.get_world_size() // args.tensor_parallel, args.tensor_parallel
    train(args, init_device_mesh(args.device, shape, mesh_dim_names=("data", "tensor")))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
