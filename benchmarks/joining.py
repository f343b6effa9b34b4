"""How long does a job take to start?

    python benchmarks/joining.py

Processes with the same program cache join a job of 1, 2 and 4 ranks on this machine. The figures are CPU times of the
rank that spends most: until `init_process_group()` returns, and from there until the first `all_reduce` is read. The
processes have imported torch and lazytpu before. Rank 0 also starts the helper process, whose time is not in these.

Fake ranks of a large job wait for each other without sockets, through relays, as in `benchmarks/control_plane.py`: the
CPU time of the helper process and of the busiest relay. A rank sends two messages and gets two when it joins: its hello
and the answer, its post and the answer once all have come.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from common import Row, compile_at_once, exit_with, finish, parser
from control_plane import LARGEST, SIZES, Node, Pipe, QuietServer, ranks_of

import lazytpu
from lazytpu.distributed.ledger import in_ranges
from lazytpu.distributed.starting import FAN_IN

RANKS = 1, 2, 4


def rank() -> None:
    """Join, and print the CPU seconds of joining and of the first collective."""
    compile_at_once()
    start = time.process_time()
    dist.init_process_group()
    joined = time.process_time()
    x = torch.ones(4, device="tpu")
    dist.all_reduce(x)
    assert x[0].item() == dist.get_world_size()
    print(json.dumps((joined - start, time.process_time() - joined)))
    lazytpu.sync()


def joined(size: int) -> list[float]:
    """Return the seconds of `rank` in a job of `size` processes, those of the rank that spends most."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank"],
            env={**os.environ, **job, "RANK": str(number), "LOCAL_RANK": str(number)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(size)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank has failed; its error is above")
    return [max(seconds) for seconds in zip(*(json.loads(output.splitlines()[-1]) for output in outputs), strict=True)]


def meeting(size: int) -> tuple[float, float, int]:
    """Return the CPU time in ms that the helper, and the busiest relay, spend while `size` fake ranks join, and the
    number of messages that the helper gets."""
    root = Node(QuietServer(size, "token"), Pipe())
    span = FAN_IN
    while span * FAN_IN < size:
        span *= FAN_IN
    root.add(0, span, size)  # the hellos
    members = {"start of the job": in_ranges(range(size))}
    calls = [["start of the job", "init_process_group", "/home/user/train.py:1"]]
    post = {"post": {"members": members, "calls": calls, "launches": False}}
    count = root.post(json.dumps(post).encode() + b"\n")
    root.answer()
    answers = [json.loads(pipe.lines[-1]) for pipe in ranks_of(root)]
    assert answers == [{"agreed": "start of the job", "count": 1}] * size
    return root.spent, root.most(), count


def main() -> int:
    if sys.argv[1:2] == ["--rank"]:
        rank()
        return 0
    args = parser(Path(__file__).stem, __doc__).parse_args()
    rows: list[Row] = []
    for size in RANKS[:2] if args.quick else RANKS:
        times = [joined(size) for _ in range(1 if args.quick else 3)]
        joining, first = map(min, zip(*times, strict=True))
        rows.append(Row(f"{size} ranks: init_process_group", joining, "s"))
        rows.append(Row(f"{size} ranks: the first all_reduce after it", first, "s"))
    for size in SIZES[-1:] if args.quick else (SIZES[-1], LARGEST):
        helper, relay, count = meeting(size)
        rows.append(Row(f"{size:,} fake ranks behind relays wait for each other: the helper", helper, "ms"))
        rows.append(Row("its busiest relay", relay, "ms"))
        rows.append(Row("the helper gets", float(count), "messages"))
    return finish("joining", rows, args)


if __name__ == "__main__":
    exit_with(main)
