"""What does a step cost the host under DistributedDataParallel and FSDP2, beside the same step without them?

    python benchmarks/data_parallel.py

Two processes train the same transformer in turns: alone, under DDP and under FSDP2, these two with each collective as a
program of its own and with the whole step as one program (`collectives="together"`). So all are measured in the same
conditions. The figures are CPU times of one step of rank 0, the smallest of many steps: what else the machine does
makes some steps longer, and none shorter. The host's time is that of the threads that run Python, without what XLA
computes on them, and without the comparison of collectives between ranks, which has a row of its own; "in all" is the
time of all threads. Linux alone: it reads the clock of each thread.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import Row, compile_at_once, exit_with, finish, parser
from host_time import python_threads
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from workloads import Training, transformer

import lazytpu

TARGET = 1.3
COMPILING = 5  # steps of each kind that are not measured
KINDS = ("alone", "DDP", "DDP together", "FSDP2", "FSDP2 together")


def timed(owner: Any, name: str, spent: Counter[str], what: str) -> None:
    """Add the milliseconds of each call of a method to `spent`."""
    method = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        try:
            return method(*args, **kwargs)
        finally:
            spent[what] += 1e3 * (time.thread_time() - start)  # pyright: ignore[reportArgumentType]
            spent[f"{what}, calls"] += 1

    setattr(owner, name, call)


def training(kind: str) -> Training:
    """The training of a kind."""
    made = Training(lambda: transformer(4))
    if kind.startswith("DDP"):
        made.model = DistributedDataParallel(made.model)
    elif kind.startswith("FSDP2"):
        for layer in made.model.get_submodule("layers").children():
            fully_shard(layer)
        fully_shard(made.model)
        made.optimizer = torch.optim.AdamW(made.model.parameters(), lr=1e-3)
    return made


def rank(count: int, file: Path) -> None:
    """One of two processes. Rank 0 writes, for each kind, (host, comparison, in all) of each of its steps, in
    milliseconds, and the programs that it launches."""
    from lazytpu.distributed.turns import Collective
    from lazytpu.distributed.world import World
    from lazytpu.runtime.xla.program import Program

    compile_at_once()
    dist.init_process_group()
    spent: Counter[str] = Counter()
    timed(Program, "run", spent, "device")
    for name in ("note", "post"):
        timed(World, name, spent, "comparison")
    for name in ("wait", "is_whole", "launched"):
        timed(Collective, name, spent, "comparison")
    steps = {kind: training(kind) for kind in KINDS}
    found: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in KINDS}
    for kind, step in steps.items():
        lazytpu.options.collectives = "together" if kind.endswith("together") else "checked"
        for _ in range(COMPILING):
            step()
            lazytpu.mark_step()
        lazytpu.sync()
    clocks = python_threads()
    for _ in range(count):
        for kind, step in steps.items():
            lazytpu.options.collectives = "together" if kind.endswith("together") else "checked"
            spent.clear()
            whole = time.process_time()
            start = sum(map(time.clock_gettime_ns, clocks))
            step()
            lazytpu.mark_step()
            host = (sum(map(time.clock_gettime_ns, clocks)) - start) / 1e6 - spent["device"] - spent["comparison"]
            lazytpu.sync()
            in_all = 1e3 * (time.process_time() - whole)
            found[kind].append((host, spent["comparison"], in_all, spent["device, calls"]))
    if dist.get_rank() == 0:
        file.write_text(json.dumps(found))


def measured(count: int) -> dict[str, list[tuple[float, float, float, float]]]:
    """What rank 0 found, in two processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(count), str(file)],
                env={**os.environ, **job, "RANK": str(number), "LOCAL_RANK": str(number)},
                stdout=subprocess.DEVNULL,
            )
            for number in range(2)
        ]
        statuses = [each.wait() for each in ranks]
        if statuses != [0, 0]:
            raise SystemExit(f"the ranks ended with {statuses}; their errors are above")
        return json.loads(file.read_text())


def main() -> int:
    if sys.argv[1:2] == ["--rank"]:
        rank(int(sys.argv[2]), Path(sys.argv[3]))
        return 0
    args = parser("data_parallel", __doc__).parse_args()
    found = measured(5 if args.quick else 150)
    alone, ddp = found["alone"], found["DDP"]
    ratio = min(ddp)[0] / min(alone)[0]
    in_all = {kind: min(total for *_, total, _ in found[kind]) for kind in KINDS}
    rows = [
        Row("a step alone", min(alone)[0], "ms"),
        Row("under DDP", min(ddp)[0], "ms"),
        Row("under DDP, beside alone", ratio, "", TARGET),
        Row("comparison of collectives", min(each for _, each, *_ in ddp), "ms"),
        *(Row(f"{kind}: programs a step", found[kind][-1][-1], "") for kind in KINDS[1:]),
        *(Row(f"{kind}: CPU time in all", in_all[kind], "ms") for kind in KINDS),
    ]
    return finish("data_parallel", rows, args)


if __name__ == "__main__":
    exit_with(main)
