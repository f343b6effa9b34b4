"""The host records a step while the device runs the one before it.

    python benchmarks/overlap.py

The device is XLA on the CPU, held to one core, and the script to another. A training step is made whose device time is
about its host time; then

    host      recording a step and launching it, until mark_step() returns, on an idle device
    device    from there until the step is done
    together  a step of a loop that never waits

Without any overlap the third is the sum of the first two; with all of it, the larger one. Needs two cores: with one,
the figures are shown, but nothing can overlap.
"""

from __future__ import annotations

import os
import time

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
os.environ.setdefault("LAZYTPU_PLATFORM", "cpu")

import torch
from common import Row, compile_at_once, exit_with, finish, parser
from torch import nn
from workloads import Training

import lazytpu

TARGET = 1.15  # of the larger of the two


def layers(rows: int) -> tuple[nn.Module, torch.Tensor]:
    """16 layers of width 128, and so many rows."""
    blocks = [module for _ in range(16) for module in (nn.Linear(128, 128), nn.GELU())]
    return nn.Sequential(*blocks), torch.randn(rows, 128)


def apart(step: Training, repeats: int) -> tuple[float, float]:
    """(host, device) milliseconds of a step, smallest of several."""
    host = device = float("inf")
    for _ in range(repeats):
        lazytpu.sync()
        start = time.perf_counter()
        step()
        lazytpu.mark_step()
        launched = time.perf_counter()
        lazytpu.sync()
        host, device = min(host, launched - start), min(device, time.perf_counter() - launched)
    return 1e3 * host, 1e3 * device


def together(step: Training, repeats: int, steps: int) -> float:
    """Milliseconds of a step in a loop, smallest of several loops."""
    best = float("inf")
    for _ in range(repeats):
        lazytpu.sync()
        start = time.perf_counter()
        for _ in range(steps):
            step()
            lazytpu.mark_step()
        lazytpu.sync()
        best = min(best, (time.perf_counter() - start) / steps)
    return 1e3 * best


def balanced(repeats: int, most: int) -> Training:
    """A step whose device time is about its host time, by the number of rows, at most so many."""
    rows = 64
    while True:
        step = Training(lambda rows=rows: layers(rows))
        for _ in range(3):
            step()
            lazytpu.mark_step()
        host, device = apart(step, repeats)
        if device > 0.8 * host or rows >= most:
            return step
        rows = int(rows * min(4.0, max(1.25, host / device)))


def main() -> int:
    args = parser("overlap", __doc__).parse_args()
    repeats, steps = (2, 10) if args.quick else (10, 50)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})  # threads that XLA starts now stay there
    torch.ones(1).to("tpu")
    os.sched_setaffinity(0, {cores[0]})
    compile_at_once()
    step = balanced(repeats, 64 if args.quick else 1 << 14)
    host, device = apart(step, repeats)
    loop = together(step, repeats, steps)
    rows = [
        Row("host", host, "ms"),
        Row("device", device, "ms"),
        Row("together", loop, "ms"),
        Row("together / the larger", loop / max(host, device), "", TARGET if len(cores) > 1 else None),
        Row("together / the sum", loop / (host + device), ""),
    ]
    return finish("overlap", rows, args)


if __name__ == "__main__":
    exit_with(main)
