"""Sizes that vary: a program for each bucket (`lazytpu.options.buckets`) beside one for each size.

    python benchmarks/sizes.py

Two scripts, each in a process with an empty cache that compiles its programs before they run. One trains a small GPT
on batches of 200 lengths from 16 to 512: forward, backward, AdamW. The other lets it write 64 tokens, with a cache that
grows by `torch.cat`. Programs of 200 sizes take many minutes: those of every twentieth are made, and count for all.

    programs               made in all
    CPU                    seconds of CPU time, compilation included
    of a program per size  the same as a part of what programs of each size take
    step                   of a step whose program is there, as a multiple of one by the program of its size, on average
    off                    the largest relative difference of a loss or logit from the same script on the CPU
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from common import Row, compile_at_once, exit_with, finish, parser
from torch import Tensor, nn
from torch.nn import functional

SHORTEST, LONGEST, LENGTHS, SAMPLED = 16, 512, 200, 20
PROMPT, TOKENS = 16, 64
VOCABULARY, WIDTH, HEADS = 128, 32, 4
LESS, SLOWER, OFF = 0.2, 1.25, 1e-3
PROGRAMS = {"lengths": 24, "decode": 28}  # the latter is 4 + 4 * log2(tokens)

Cache = tuple[Tensor, Tensor]


class Block(nn.Module):
    """Attention to all tokens so far, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        batch, length, _ = x.shape
        split = self.qkv(self.before(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.after(x)), (k, v)


class GPT(nn.Module):
    """Logits of the tokens that follow, and the cache of each block."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, caches: list[Cache] | None = None) -> tuple[Tensor, list[Cache]]:
        start = 0 if caches is None else caches[0][0].shape[2]
        x = self.tokens(tokens) + self.positions.weight[start : start + tokens.shape[1]]
        grown: list[Cache] = []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, None if caches is None else caches[i])
            grown.append(cache)
        return self.head(x), grown


class Lengths:
    """Training: a step on a batch of each length."""

    def __init__(self, device: str, layers: int):
        torch.manual_seed(0)
        self.device, self.model = device, GPT(layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def run(self, lengths: list[int]) -> tuple[list[float], list[float]]:
        """The loss of each step, and its seconds."""
        found = list[float]()
        took = list[float]()
        for length in lengths:
            generator = torch.Generator().manual_seed(length)
            batch = torch.randint(0, VOCABULARY, (4, length + 1), generator=generator).to(self.device)
            start = time.perf_counter()
            logits, _ = self.model(batch[:, :-1])
            loss = functional.cross_entropy(logits.reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            found.append(loss.item())
            took.append(time.perf_counter() - start)
        return found, took


class Decode:
    """Inference: the tokens behind a prompt, each the most likely one."""

    def __init__(self, device: str, layers: int):
        torch.manual_seed(0)
        self.device, self.model = device, GPT(layers).to(device).eval()

    def run(self, sizes: list[int]) -> tuple[list[float], list[float]]:
        """The logit of each token, and its seconds."""
        found = list[float]()
        took = list[float]()
        caches = None
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, VOCABULARY, (1, PROMPT), generator=generator).to(self.device)
        with torch.no_grad():
            for _ in sizes:
                start = time.perf_counter()
                logits, caches = self.model(tokens, caches)
                best, tokens = logits[:, -1].max(-1, keepdim=True)
                found.append(best.item())
                took.append(time.perf_counter() - start)
        return found, took


SCRIPTS = {"lengths": Lengths, "decode": Decode}


def sizes(name: str, quick: bool) -> list[int]:
    """Of the script of that name, in the order in which they come."""
    if name == "decode":
        return list(range(8 if quick else TOKENS))
    found = random.Random(0).sample(range(SHORTEST, LONGEST + 1), LENGTHS)
    return found[:4] if quick else found


def child(name: str, layers: int, run: list[int], again: list[int], repeats: int) -> dict[str, Any]:
    """One process: the script on the sizes `run`, then repeatedly on `again`, whose programs are there."""
    import lazytpu

    compile_at_once()
    script, host = SCRIPTS[name]("tpu", layers), SCRIPTS[name]("cpu", layers)
    lazytpu.sync()
    begun, before = time.process_time(), len(lazytpu.explain())
    found, _ = script.run(run)
    cpu, programs = time.process_time() - begun, len(lazytpu.explain()) - before
    expected, _ = host.run(run)
    runs = [script.run(again)[1] for _ in range(repeats)]
    off = max(abs(one - other) / abs(other) for one, other in zip(found, expected, strict=True))
    return {"cpu": cpu, "programs": programs, "off": off, "steps": [min(each) for each in zip(*runs, strict=True)]}


def fresh(name: str, buckets: str, *arguments: Any) -> dict[str, Any]:
    """The figures of a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(Path(__file__)), "--child", json.dumps([name, *arguments])],
            env={**os.environ, "LAZYTPU_CACHE_DIR": folder, "LAZYTPU_BUCKETS": buckets},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(done.stdout)


def measured(name: str, quick: bool) -> list[Row]:
    """The rows of a script."""
    layers, repeats, every = (1, 1, 2) if quick else (2, 5, SAMPLED if name == "lengths" else 1)
    whole = sizes(name, quick)
    sampled = whole[::every]
    bucketed = fresh(name, "auto", layers, whole, sampled, repeats)
    exact = fresh(name, "off", layers, sampled, sampled, repeats)
    of_each = exact["cpu"] * len(whole) / len(sampled)
    slower = mean(one / other for one, other in zip(bucketed["steps"], exact["steps"], strict=True))
    return [
        Row(f"{name}: programs", bucketed["programs"], "", PROGRAMS[name]),
        Row(f"{name}: CPU", bucketed["cpu"], "s"),
        Row(f"{name}: of a program per size", bucketed["cpu"] / of_each, "×", LESS),
        Row(f"{name}: step", slower, "×", SLOWER),
        Row(f"{name}: off", max(bucketed["off"], exact["off"]), "", OFF),
    ]


def main() -> int:
    options = parser("sizes", __doc__)
    options.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options.add_argument("--only", choices=sorted(SCRIPTS), help="only this script")
    args = options.parse_args()
    if args.child:
        print(json.dumps(child(*args.child)))
        return 0
    rows = [row for name in SCRIPTS if args.only in (None, name) for row in measured(name, args.quick)]
    return finish("sizes", rows, args)


if __name__ == "__main__":
    exit_with(main)
