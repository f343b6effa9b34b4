"""What one op costs the host, by stage, beside torch eager.

    python benchmarks/recording.py

Microseconds of this thread's CPU time per op on 4x4 tensors, smallest of `--repeats` runs of `--ops` ops, all hits:

    dispatch   a Python kernel that does nothing: torch's dispatcher and the way back, the floor of this design
    record     the op, as a script calls it; its results stay alive until the cut
    cut        launching the program that computes them, per op
    eager      the same op on the CPU by stock PyTorch, dispatch and arithmetic

then the same for whole training steps of a small MLP with AdamW (process CPU time: autograd has its own thread).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import lazytpu

OPS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "add": lambda x, y: x + y,
    "relu": lambda x, y: x.relu(),
    "mm": lambda x, y: x @ y,
    "view": lambda x, y: x.view(16),
    "add_": lambda x, y: x.add_(y),
}


def per_op(op: Callable[[Tensor, Tensor], object], device: str, ops: int, repeats: int) -> tuple[float, float]:
    """Microseconds per op while recording (on the CPU: running), and in the cut."""
    x, y = (torch.randn(4, 4).to(device) for _ in range(2))
    record = cut = float("inf")
    for _ in range(repeats + 2):  # the first compiles, the second may too
        start = time.thread_time()
        results = [op(x, y) for _ in range(ops)]
        middle = time.thread_time()
        lazytpu.mark_step()
        end = time.thread_time()
        lazytpu.sync()
        del results
        record, cut = min(record, middle - start), min(cut, end - middle)
    return 1e6 * record / ops, 1e6 * cut / ops


def dispatch_floor(ops: int, repeats: int) -> float:
    """Microseconds of a Python kernel on "tpu" that returns a tensor it holds."""
    library = torch.library.Library("lazytpu_benchmark", "DEF")
    library.define("nothing(Tensor x, Tensor y) -> Tensor")
    x, y, result = (torch.randn(4, 4).to("tpu") for _ in range(3))
    library.impl("nothing", lambda x, y: result, "PrivateUse1")
    nothing = torch.ops.lazytpu_benchmark.nothing
    best = float("inf")
    for _ in range(repeats):
        start = time.thread_time()
        for _ in range(ops):
            nothing(x, y)
        best = min(best, time.thread_time() - start)
    return 1e6 * best / ops


def training_step(device: str, layers: int, repeats: int) -> tuple[float, float, int]:
    """Milliseconds of a step of an MLP of width 32 on 8 rows, before its cut and in it, and the ops it records."""
    torch.manual_seed(0)
    blocks = [module for _ in range(layers) for module in (nn.Linear(32, 32), nn.ReLU())]
    model = nn.Sequential(*blocks).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = (torch.randn(8, 32).to(device) for _ in range(2))

    def step() -> None:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    record = cut = float("inf")
    before = after = 0
    for _ in range(repeats + 3):
        before = lazytpu.metrics()["records"]
        start = time.process_time()
        step()
        middle = time.process_time()
        lazytpu.mark_step()
        end = time.process_time()
        lazytpu.sync()
        after = lazytpu.metrics()["records"]
        record, cut = min(record, middle - start), min(cut, end - middle)
    return 1e3 * record, 1e3 * cut, after - before


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Host cost per op.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--ops", type=int, default=200, help="ops between two cuts")
    parser.add_argument("--repeats", type=int, default=20, help="runs; the smallest counts")
    parser.add_argument("--layers", type=int, default=20, help="layers of the MLP")
    args = parser.parse_args()
    torch.set_num_threads(1)

    console = Console()
    floor = dispatch_floor(args.ops, args.repeats)
    table = Table("op", "dispatch", "record", "cut", "eager", title="microseconds per op", title_justify="left")
    for name, op in OPS.items():
        record, cut = per_op(op, "tpu", args.ops, args.repeats)
        eager, _ = per_op(op, "cpu", args.ops, args.repeats)
        reached = "" if name == "view" else f"{floor:.2f}"  # views stay in C++
        table.add_row(name, reached, f"{record:.2f}", f"{cut:.2f}", f"{eager:.2f}")
    console.print(table)

    table = Table(
        "step", "record", "cut", "ops", "per op", title="milliseconds per training step", title_justify="left"
    )
    record, cut, ops = training_step("tpu", args.layers, args.repeats)
    table.add_row("tpu", f"{record:.2f}", f"{cut:.2f}", f"{ops:,}", f"{1e3 * (record + cut) / max(ops, 1):.2f} us")
    eager, _, _ = training_step("cpu", args.layers, args.repeats)
    table.add_row("cpu", f"{eager:.2f}", "", "", "")
    console.print(table)


if __name__ == "__main__":
    main()
