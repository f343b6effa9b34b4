"""Sizes that vary: a program for each bucket (`lazytpu.options.buckets`) beside one for each size.

    python benchmarks/sizes.py

Two scripts, each in a process with an empty cache that compiles its programs before they run. One trains a small GPT
on batches of 200 lengths from 16 to 512: forward, backward, AdamW. The other lets it write 64 tokens, with a cache that
grows by `torch.cat`. Programs of 200 sizes take many minutes: those of every twentieth are made, and count for all.

    programs               made in all
    CPU                    seconds of CPU time, compilation included
    of a program per size  the same as a part of what programs of each size take
    step                   of a step whose program is there, as a multiple of one by the program of its size, on average
    tokens/s               of the second script when its programs are there; of eager torch on the CPU, on one core; and
                           of the same model in JAX, a jitted step that writes to caches of the greatest length by hand
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


class DecodeInJax:
    """The same as a jitted step that writes to caches of the greatest length, under a mask."""

    def __init__(self, layers: int):
        import jax

        torch.manual_seed(0)
        model = GPT(layers).eval()
        self.weights = {name: jax.numpy.asarray(value.numpy()) for name, value in model.state_dict().items()}
        self.layers, self.step = layers, jax.jit(self._step, donate_argnums=1)

    def _step(self, tokens: Any, caches: Any, start: Any) -> Any:
        """The best logit, its token, and the caches, [layer, k or v, heads, length, width]."""
        import jax
        from jax import numpy as jnp

        weights, (_, length) = self.weights, tokens.shape

        def linear(x: Any, name: str) -> Any:
            return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

        def norm(x: Any, name: str) -> Any:
            x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
            return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

        positions = start + jnp.arange(length)
        seen = jnp.arange(caches.shape[3])[None] <= positions[:, None]
        x = weights["tokens.weight"][tokens[0]] + weights["positions.weight"][positions]
        for i in range(self.layers):
            name = f"blocks.{i}"
            qkv = linear(norm(x, f"{name}.before"), f"{name}.qkv").reshape(length, 3, HEADS, WIDTH // HEADS)
            q, k, v = qkv.transpose(1, 2, 0, 3)
            caches = jax.lax.dynamic_update_slice(caches, jnp.stack((k, v))[None], (i, 0, 0, start, 0))
            scores = q @ caches[i, 0].swapaxes(1, 2) / (WIDTH // HEADS) ** 0.5
            y = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ caches[i, 1]
            x = x + linear(y.swapaxes(0, 1).reshape(length, WIDTH), f"{name}.out")
            hidden = jax.nn.gelu(linear(norm(x, f"{name}.after"), f"{name}.mlp.0"), approximate=False)
            x = x + linear(hidden, f"{name}.mlp.2")
        logits = linear(x[-1:], "head")
        return logits.max(-1), logits.argmax(-1)[None], caches

    def run(self, sizes: list[int]) -> tuple[list[float], list[float]]:
        """The logit of each token, and its seconds."""
        from jax import numpy as jnp

        found = list[float]()
        took = list[float]()
        generator = torch.Generator().manual_seed(0)
        tokens = jnp.asarray(torch.randint(0, VOCABULARY, (1, PROMPT), generator=generator).numpy())
        caches, at = jnp.zeros((self.layers, 2, HEADS, PROMPT + TOKENS, WIDTH // HEADS)), 0
        for _ in sizes:
            start = time.perf_counter()
            length = tokens.shape[1]
            best, tokens, caches = self.step(tokens, caches, at)
            at += length
            found.append(float(best[0]))
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
    steps = [min(each) for each in zip(*runs, strict=True)]
    return {"cpu": cpu, "programs": programs, "off": off, "steps": steps}


def rates(layers: int, run: list[int], repeats: int) -> dict[str, Any]:
    """One process: seconds of each token by eager torch and by JAX, and the largest difference of their logits."""
    torch.set_num_threads(1)
    eager, jitted = Decode("cpu", layers), DecodeInJax(layers)
    expected, (found, _) = eager.run(run)[0], jitted.run(run)
    off = max(abs(one - other) / abs(other) for one, other in zip(found, expected, strict=True))

    def steps(script: Decode | DecodeInJax) -> list[float]:
        return [min(each) for each in zip(*[script.run(run)[1] for _ in range(repeats)], strict=True)]

    return {"off": off, "eager": steps(eager), "jax": steps(jitted)}


def fresh(name: str, buckets: str, *arguments: Any) -> dict[str, Any]:
    """The figures of a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(Path(__file__)), "--child", json.dumps([name, *arguments])],
            env={**os.environ, "LAZYTPU_CACHE_DIR": folder, "LAZYTPU_BUCKETS": buckets, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(done.stdout)


def measured(name: str, quick: bool) -> list[Row]:
    """The rows of a script."""
    layers, repeats, every = (1, 3, 2) if quick else (2, 5, SAMPLED if name == "lengths" else 1)
    whole = sizes(name, quick)
    sampled = whole[::every]
    bucketed = fresh(name, "auto", layers, whole, sampled, repeats)
    exact = fresh(name, "off", layers, sampled, sampled, repeats)
    of_each = exact["cpu"] * len(whole) / len(sampled)
    slower = mean(one / other for one, other in zip(bucketed["steps"], exact["steps"], strict=True))
    rows = [
        Row(f"{name}: programs", bucketed["programs"], "", PROGRAMS[name]),
        Row(f"{name}: CPU", bucketed["cpu"], "s"),
        Row(f"{name}: of a program per size", bucketed["cpu"] / of_each, "×", LESS),
        Row(f"{name}: step", slower, "×", SLOWER),
        Row(f"{name}: off", max(bucketed["off"], exact["off"]), "", OFF),
    ]
    if name == "decode":
        others = fresh("rates", "off", layers, whole, repeats)
        rows += [
            Row("decode: tokens", 1 / mean(bucketed["steps"]), "/s"),
            Row("decode: by a program per size", 1 / mean(exact["steps"]), "/s"),
            Row("decode: by eager torch", 1 / mean(others["eager"]), "/s"),
            Row("decode: by jax.jit", 1 / mean(others["jax"]), "/s"),
            Row("decode: off in JAX", others["off"], "", OFF),
        ]
    return rows


def main() -> int:
    options = parser("sizes", __doc__)
    options.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options.add_argument("--only", choices=sorted(SCRIPTS), help="only this script")
    args = options.parse_args()
    if args.child:
        name, *arguments = args.child
        print(json.dumps(rates(*arguments) if name == "rates" else child(name, *arguments)))
        return 0
    rows = [row for name in SCRIPTS if args.only in (None, name) for row in measured(name, args.quick)]
    return finish("sizes", rows, args)


if __name__ == "__main__":
    exit_with(main)
