"""A long training run whose memory stays flat: device buffers, device bytes, and the memory of the process.

    python benchmarks/steps.py

An MLP with AdamW, its learning rate changed at every step. The first tenth of the steps is warm-up; afterwards the
number of device buffers and their bytes must not change, nothing may compile, and the process may grow by at most
4 MiB. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import lazytpu
from lazytpu.runtime.buffer import Buffer

ALLOWED_GROWTH = 4 * 2**20


class Snapshot(NamedTuple):
    step: int
    buffers: int
    device_bytes: int
    process_bytes: int
    compiles: int


def snapshot(step: int) -> Snapshot:
    """What is alive after everything launched is done."""
    lazytpu.sync()
    gc.collect()
    buffers = sum(type(each) is Buffer for each in gc.get_objects())
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    counted = lazytpu.metrics()
    return Snapshot(step, buffers, counted["live_bytes"], pages * os.sysconf("SC_PAGE_SIZE"), counted["compiles"])


def run(steps: int) -> list[Snapshot]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + 0.01 * step))
    every = max(1, steps // 10)
    taken: list[Snapshot] = []
    for step in range(1, steps + 1):
        x = torch.randn(32, 64).to("tpu")
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        lazytpu.mark_step()
        if step % every == 0:
            taken.append(snapshot(step))
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description="Flat memory.", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="training steps")
    taken = run(parser.parse_args().steps)

    table = Table("step", "buffers", "device bytes", "process MiB", "compiles")
    for each in taken:
        process = f"{each.process_bytes / 2**20:.1f}"
        table.add_row(str(each.step), str(each.buffers), f"{each.device_bytes:,}", process, str(each.compiles))
    Console().print(table)

    first, last = taken[0], taken[-1]
    growth = last.process_bytes - first.process_bytes
    flat = all(each[1:3] == first[1:3] and each.compiles == first.compiles for each in taken)
    print(f"device memory {'is flat' if flat else 'CHANGES'}; the process grew by {growth / 2**20:.1f} MiB")
    return 0 if flat and growth <= ALLOWED_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
