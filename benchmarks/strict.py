"""What an op costs the host in strict mode, where each is a program of its own, launched at once.

    python benchmarks/strict.py

Microseconds of CPU time per op, smallest of many runs: of single ops on 4x4 tensors, and of a training step of an MLP
with AdamW (all threads of the process, XLA's own included; ops as stock PyTorch counts them on the CPU).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from common import Row, compile_at_once, exit_with, finish, parser, smallest
from torch import Tensor
from workloads import Training, aten_ops, mlp

import lazytpu

TARGET = 40.0  # microseconds of CPU per op of a training step
OPS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "add": lambda x, y: x + y,
    "mm": lambda x, y: x @ y,
    "add_": lambda x, y: x.add_(y),
}


def single(op: Callable[[Tensor, Tensor], object], ops: int, repeats: int) -> float:
    """Microseconds of this thread per op."""
    x, y = (torch.randn(4, 4).to("tpu") for _ in range(2))

    def run() -> float:
        start = time.thread_time()
        for _ in range(ops):
            op(x, y)
        spent = time.thread_time() - start
        lazytpu.sync()
        return spent

    run()
    return 1e6 * smallest(run, repeats) / ops


def training(repeats: int) -> float:
    """Microseconds of the process for a training step."""
    step = Training(mlp)

    def run() -> float:
        lazytpu.sync()
        start = time.process_time()
        step()
        lazytpu.sync()
        return time.process_time() - start

    for _ in range(3):
        run()
    return 1e6 * smallest(run, repeats)


def main() -> int:
    args = parser("strict", __doc__).parse_args()
    compile_at_once()
    repeats = 2 if args.quick else 20
    with lazytpu.mode("strict"):
        rows = [Row(f"{name}", single(op, 100, repeats), "µs") for name, op in OPS.items()]
        ops = aten_ops(mlp)
        rows.append(Row(f"MLP step of {ops:,} ops, per op", training(repeats) / ops, "µs", TARGET))
    return finish("strict", rows, args)


if __name__ == "__main__":
    exit_with(main)
