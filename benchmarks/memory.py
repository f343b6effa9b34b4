"""Memory of a long training run, and what it costs to know where it is.

    python benchmarks/memory.py

An MLP with AdamW and dropout, a new batch and another learning rate at every step. After a tenth of the steps the
number of device buffers and their bytes must not change, nothing may compile, and the process may grow by at most
4 MiB. Then `lazytpu.memory()` is timed, and what a buffer costs the host with and without its source line.
"""

from __future__ import annotations

import gc
import time

import torch
from common import Row, compile_at_once, exit_with, finish, parser, process_bytes, smallest
from torch import nn

import lazytpu
from lazytpu.runtime.buffers.buffer import Buffer, Origin

GROWTH = 4.0  # MiB: the allocator's own
NOTE = 30.0  # ns that a buffer's source line may cost


def buffers() -> int:
    """Device buffers that are alive after everything launched is done."""
    lazytpu.sync()
    gc.collect()
    return sum(type(each) is Buffer for each in gc.get_objects())


def train(steps: int) -> list[Row]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + 0.01 * step))
    taken: list[tuple[float, int, int, int]] = []
    for step in range(steps + 1):
        x = torch.randn(32, 64).to("tpu")
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        lazytpu.mark_step()
        if step in (steps // 10, steps):
            found = buffers()
            counted = lazytpu.metrics()
            taken.append((process_bytes() / 2**20, found, counted["live_bytes"], counted["misses"]))
    early, late = taken
    return [
        Row(f"{steps:,} steps: the process grew by", max(0.0, late[0] - early[0]), "MiB", GROWTH),
        Row("buffers on the device", late[1], ""),
        Row("buffers more than early on", late[1] - early[1], "", 0),
        Row("device memory grew by", late[2] - early[2], "bytes", 0),
        Row("programs after a tenth of the steps", late[3] - early[3], "", 0),
        Row("peak of device memory, temporaries included", lazytpu.metrics()["peak_bytes"] / 2**20, "MiB"),
    ]


def per_buffer(count: int, origin: Origin | None) -> float:
    """Nanoseconds to make and drop a buffer."""
    start = time.thread_time_ns()
    for _ in range(count):
        Buffer(None, 64, origin)
    return (time.thread_time_ns() - start) / count


def report_seconds() -> float:
    start = time.perf_counter()
    lazytpu.memory()
    return time.perf_counter() - start


def main() -> int:
    options = parser("memory", __doc__)
    options.add_argument("--steps", type=int, default=1000, help="training steps (default: 1,000)")
    args = options.parse_args()
    compile_at_once()
    rows = train(min(args.steps, 60) if args.quick else args.steps)
    origin = Origin("aten.add.Tensor", None, "step")
    plain, noted = float("inf"), float("inf")
    for _ in range(5 if args.quick else 50):  # by turns, so that both meet the same disturbances
        plain, noted = min(plain, per_buffer(10_000, None)), min(noted, per_buffer(10_000, origin))
    rows += [
        Row("a buffer, made and dropped", noted, "ns"),
        Row("of that for its source line", max(0.0, noted - plain), "ns", NOTE),
        Row("lazytpu.memory()", 1e3 * smallest(report_seconds, 3), "ms"),
    ]
    return finish("memory", rows, args)


if __name__ == "__main__":
    exit_with(main)
