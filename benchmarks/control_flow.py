"""Random control flow from a fixed set of paths: as many programs as paths, and memory that stays flat.

    python benchmarks/control_flow.py

Every training step takes one of 8 paths at random: which activation, a block twice or once, which loss. Each path is
compiled once, at its first step, and the resident memory of the process must not grow after a tenth of the steps.
"""

from __future__ import annotations

import gc
import itertools
import random
import time

import torch
from common import Row, compile_at_once, exit_with, finish, parser, process_bytes
from torch import Tensor, nn

import lazytpu

STEPS, PATHS = 10_000, 8
GROWTH = 4.0  # MiB that the process may grow by: the allocator's own


class Branching(nn.Module):
    """A model whose forward pass takes the path it is told: three choices of two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor, path: tuple[bool, ...]) -> Tensor:
        smooth, twice, robust = path
        h = self.first(x)
        for _ in range(2 if twice else 1):
            h = self.block(nn.functional.gelu(h) if smooth else torch.relu(h))
        y = self.last(h)
        return y.abs().mean() if robust else y.square().mean()


def main() -> int:
    options = parser("control_flow", __doc__)
    options.add_argument("--steps", type=int, default=STEPS, help=f"training steps (default: {STEPS:,})")
    args = options.parse_args()
    steps = min(args.steps, 100) if args.quick else args.steps
    compile_at_once()
    torch.manual_seed(0)
    model = Branching().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(16, 32).to("tpu")
    paths = list(itertools.product((False, True), repeat=3))

    def step(path: tuple[bool, ...]) -> None:
        model(x, path).backward()
        optimizer.step()
        optimizer.zero_grad()

    def settled() -> tuple[int, int]:
        lazytpu.sync()
        gc.collect()
        return process_bytes(), lazytpu.metrics()["live_bytes"]

    lazytpu.sync()
    programs = len(lazytpu.graphs())
    choose = random.Random(0)
    early, middle = (0, 0), steps // 10
    start = time.perf_counter()
    for i in range(steps):
        step(choose.choice(paths))
        if i == middle:
            early = settled()
    late = settled()
    seconds = time.perf_counter() - start
    found = len(lazytpu.graphs()) - programs
    rows = [
        Row(f"programs of {PATHS} paths in {steps:,} steps", found, "", PATHS),
        Row("the process grew by", max(0, late[0] - early[0]) / 2**20, "MiB", GROWTH),
        Row("device memory grew by", late[1] - early[1], "bytes", 0),
        Row("steps per second", steps / seconds, ""),
    ]
    return finish("control_flow", rows, args)


if __name__ == "__main__":
    exit_with(main)
