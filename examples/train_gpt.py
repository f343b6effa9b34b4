"""Train a character-level GPT on text that every machine has: the source of Python's standard library.

    python examples/train_gpt.py                  # on "tpu": XLA runs it, on a TPU or on this machine's CPU
    python examples/train_gpt.py --device cpu     # the same file on stock PyTorch

Only the import in `main`, `mark_step()` at the end of a step and the counters of the report are specific to lazytpu.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import sysconfig
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from tqdm import tqdm

CHARACTERS = 128  # the text is ASCII: a token is a byte


# ---- the model


class Block(nn.Module):
    """Attention, then an MLP, each on a normalised residual stream."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attention(self.norm1(x)), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.norm2(x)), self.dropout, self.training)


class GPT(nn.Module):
    """Logits of the next character at every position: (batch, length) of i64 to (batch, length, CHARACTERS)."""

    def __init__(self, window: int, layers: int, heads: int, width: int, dropout: float):
        super().__init__()
        self.window = window
        self.token = nn.Embedding(CHARACTERS, width)
        self.position = nn.Embedding(window, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHARACTERS, bias=False)
        self.head.weight = self.token.weight  # tied
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = 0.05 / math.sqrt(2 * layers) if name.endswith(("proj.weight", "mlp.2.weight")) else 0.05
                nn.init.normal_(parameter, std=scale)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token(tokens) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# ---- the text


def read_text() -> tuple[Tensor, Tensor]:
    """The library's modules as ASCII bytes, for training and, every tenth module, for validation."""
    parts: tuple[list[str], list[str]] = ([], [])
    # A distribution may link a module to a file that is not installed.
    modules = filter(Path.is_file, Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    for number, path in enumerate(sorted(modules)):
        parts[number % 10 == 9].append(path.read_text(encoding="utf-8"))
    train, validation = (bytearray("\n".join(part).encode("ascii", "ignore")) for part in parts)
    return torch.frombuffer(train, dtype=torch.uint8), torch.frombuffer(validation, dtype=torch.uint8)


def batches(text: Tensor, args: argparse.Namespace, seed: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random windows, inputs and targets; drawn on the CPU, so that they are the same for every device."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        starts = torch.randint(len(text) - args.window, (args.batch, 1), generator=generator)
        chunk = text[starts + torch.arange(args.window + 1)].long()
        yield chunk[:, :-1].to(args.device), chunk[:, 1:].to(args.device)


def loss_of(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


# ---- training


class Meter:
    """Counters of lazytpu, and compilations by part of the run; with stock PyTorch, time and memory of the process."""

    def __init__(self, engine: Any):
        self.engine = engine
        self.compiled: dict[str, int] = {}

    def mark_step(self) -> None:
        if self.engine:
            self.engine.mark_step()

    def read(self, part: str) -> dict[str, Any]:
        """The counters at the end of a part of the run; programs compiled since the last call were compiled for it."""
        if self.engine:
            now = self.engine.metrics()
        else:
            peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            now = {"compiles": 0, "trace_ms": 0.0, "device_ms": 1e3 * time.perf_counter(), "peak_bytes": peak}
        new = now["compiles"] - sum(self.compiled.values())
        if new:
            self.compiled[part] = self.compiled.get(part, 0) + new
        return now


def train_step(model: GPT, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
    loss = loss_of(model, inputs, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def train(model: GPT, texts: tuple[Tensor, Tensor], args: argparse.Namespace, meter: Meter) -> dict[str, Any]:
    """Run `args.steps` steps. Returns their losses, and the host's and the device's milliseconds for one of them."""
    text, unseen = texts
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    warm_up = max(1, args.steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(  # up in a line, then down a cosine to a tenth
        optimizer, lambda step: min((step + 1) / warm_up, 0.55 + 0.45 * math.cos(math.pi * step / args.steps))
    )
    first_loss = validation_loss = math.nan
    start = time.perf_counter()
    readings = [(0, meter.read("the move to the device"))]
    often = 0.1 if sys.stderr.isatty() else 10.0  # seconds between two pictures of the bar: a log needs few
    bar = tqdm(batches(text, args, args.seed, args.steps), total=args.steps, unit="step", mininterval=often)
    for step, (inputs, targets) in enumerate(bar, start=1):
        loss = train_step(model, optimizer, inputs, targets)
        schedule.step()
        meter.mark_step()
        now = meter.read(f"step {step}")
        if step == 1 or step % 10 == 0 or step == args.steps:  # reading a loss waits for the device: not at every step
            value = loss.item()
            first_loss = value if step == 1 else first_loss
            readings.append((step, meter.read("reading a loss")))
            speed = step * inputs.numel() / (time.perf_counter() - start)
            state = f"loss {value:.3f}, {speed:,.0f} tokens/s, {now['compiles']} compiles"
            bar.set_postfix_str(state, refresh=False)
        if step % 250 == 0 or step == args.steps:
            validation_loss = validate(model, unseen, args)
            meter.read("validation")
            bar.write(f"step {step}: validation loss {validation_loss:.3f}")

    def per_step(key: str) -> float:  # the median between two readings: neither compiling nor validating counts
        return round(median((new[key] - old[key]) / (b - a) for (a, old), (b, new) in pairwise(readings)), 3)

    times = {key: per_step(key) for key in ("trace_ms", "device_ms")}
    return {"steps": args.steps, "first_loss": first_loss, "validation_loss": validation_loss, **times}


@torch.no_grad()
def validate(model: GPT, text: Tensor, args: argparse.Namespace) -> float:
    """The mean loss over the same few batches of text that the model never trains on."""
    model.eval()
    losses = [loss_of(model, *batch).item() for batch in batches(text, args, seed=0, count=8)]
    model.train()
    return sum(losses) / len(losses)


@torch.no_grad()
def sample(model: GPT, prompt: str, args: argparse.Namespace) -> str:
    """Continue `prompt` by `args.sample` characters. The window always has its full length: one shape, one program."""
    model.eval()
    generator = torch.Generator().manual_seed(args.seed)
    tokens = list(prompt.encode("ascii"))
    for _ in range(args.sample):
        recent = tokens[-model.window :]
        window = torch.tensor([recent + [0] * (model.window - len(recent))])  # no position sees later ones
        logits = model(window.to(args.device)).cpu()[0, len(recent) - 1]
        tokens.append(int(torch.multinomial(F.softmax(logits / 0.8, dim=0), 1, generator=generator)))
    return bytes(tokens).decode("ascii")


# ---- the whole run


def report(found: dict[str, Any], meter: Meter, console: Console) -> None:
    table = Table("what", "value", title="closing report", title_justify="left")
    table.add_row("steps", f"{found['steps']:,}")
    table.add_row("loss", f"{found['first_loss']:.3f} at the first step, {found['validation_loss']:.3f} on unseen text")
    table.add_row("host, recording", f"{found['trace_ms']:.1f} ms a step")
    table.add_row("device", f"{found['device_ms']:.1f} ms a step")
    table.add_row("peak memory", f"{found['peak_bytes'] / 2**20:,.1f} MiB")
    table.add_row("compiles", str(found["compiles"]))
    for part, count in meter.compiled.items():
        table.add_row("", f"{count} for {part}")
    console.print(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a character-level GPT on the source of Python's standard library.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--device", choices=("tpu", "cpu"), default="tpu", help="cpu is stock PyTorch")
    add("--steps", type=int, default=1500, help="steps of the optimizer")
    add("--batch", type=int, default=12, help="windows of text in a step")
    add("--window", type=int, default=64, help="characters in a window")
    add("--layers", type=int, default=4, help="blocks of the model")
    add("--heads", type=int, default=4, help="attention heads of a block")
    add("--width", type=int, default=128, help="width of the residual stream")
    add("--dropout", type=float, default=0.1, help="with 0, both devices give the same losses")
    add("--seed", type=int, default=1, help="of the weights, the batches, the dropout and the sample")
    add("--sample", type=int, default=300, help="characters of the sample")
    add("--out", type=Path, default=Path("out/gpt.pt"), help="where the checkpoint is written")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    engine: Any = None
    if args.device == "tpu":
        import lazytpu as engine

    console, meter = Console(), Meter(engine)
    texts = read_text()
    torch.manual_seed(args.seed)
    shape = {key: getattr(args, key) for key in ("window", "layers", "heads", "width", "dropout")}
    model = GPT(**shape).to(args.device)  # made on the CPU: the same weights for every device
    size = sum(p.numel() for p in model.parameters())
    console.print(f"{size:,} parameters on {args.device}, {len(texts[0]):,} characters to train on")

    found = train(model, texts, args, meter)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    torch.save({"shape": shape, "weights": weights}, args.out)  # loads wherever PyTorch is
    console.print(f"checkpoint: {args.out}\n")
    console.rule("a sample")
    console.print(sample(model, "def ", args), markup=False, highlight=False)
    console.rule()
    now = meter.read("the sample")
    found |= {key: now[key] for key in ("compiles", "peak_bytes")}
    report(found, meter, console)
    order = ("steps", "first_loss", "validation_loss", "compiles", "trace_ms", "device_ms", "peak_bytes")
    print(json.dumps({key: found[key] for key in order}))


if __name__ == "__main__":
    main()
