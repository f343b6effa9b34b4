"""The first minute: scripts as newcomers write them, each in a fresh process.

    python benchmarks/first_minute.py
    python benchmarks/first_minute.py --only lstm,gan

The scripts are those of benchmarks/newcomers; each reads its loss at every step. Each runs with an empty cache on disk
(cold) and again with what that left (warm), and beside it as stock PyTorch on the CPU (eager) and under its
torch.compile (inductor, with an empty cache of its own) where there is a C++ compiler. Seconds of wall time since the
process was started, until the end of the first step, the second step alone, and until the script is done; the steady
step is the median of the later half. A script that inductor cannot run has 0 steps there.

The second process must compile nothing, and its first step be done within 6 s.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from common import Row, exit_with, finish, parser

SCRIPTS = ("lstm", "diffusion", "resnet", "bert", "demo", "ode", "maml", "gan")
FOLDER = Path(__file__).parent / "newcomers"
LIMIT = 600  # seconds for a process
FIRST_STEP = 6.0  # seconds, of a process that finds its programs


def run(script: str, device: str, folder: str, steps: int | None) -> dict[str, Any]:
    """What a process of its own found, with caches in `folder`. Raises RuntimeError with the last line of an error."""
    environment = {**os.environ, "LAZYTPU_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{script}.py"), device, *([] if steps is None else [str(steps)])],
        env={**environment, "STARTED": str(time.time())},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def times(script: str, kind: str, found: dict[str, Any]) -> Iterator[Row]:
    """The figures that all kinds of runs have."""
    ends = found["ends"]
    spans = [after - before for before, after in pairwise(ends)]
    yield Row(f"{script}: {kind}, first step", ends[0], "s", FIRST_STEP if kind == "warm" else None)
    yield Row(f"{script}: {kind}, second", spans[0], "s")
    yield Row(f"{script}: {kind}, whole", found["whole"], "s")
    if kind != "cold":
        yield Row(f"{script}: {kind}, steady", 1e3 * median(spans[len(spans) // 2 :]), "ms")


def rows(script: str, steps: int | None, inductor: bool) -> Iterator[Row]:
    """All figures of a script."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("cold", "warm"):
            found = run(script, "tpu", folder, steps)
            yield from times(script, kind, found)
            yield Row(f"{script}: {kind}, compiled", found["compiles"], "", 0 if kind == "warm" else None)
        yield Row(f"{script}: warm, programs", found["cache_hits"] + found["compiles"], "")
        yield from times(script, "eager", run(script, "cpu", folder, steps))
    if inductor:
        with tempfile.TemporaryDirectory() as folder:
            try:
                yield from times(script, "inductor", run(script, "inductor", folder, steps))
            except RuntimeError as error:
                print(f"{script} under torch.compile: {error}", file=sys.stderr)
                yield Row(f"{script}: inductor, first step", 0, "steps")


def main() -> int:
    options = parser("first_minute", __doc__)
    options.add_argument("--only", default="", metavar="NAMES", help=f"of {','.join(SCRIPTS)} (default: all)")
    args = options.parse_args()
    chosen = args.only.split(",") if args.only else ("lstm",) if args.quick else SCRIPTS
    unknown = set(chosen).difference(SCRIPTS)
    if unknown:
        options.error(f"no script {', '.join(sorted(unknown))}; there are {', '.join(SCRIPTS)}")
    compilers = [os.environ.get("CXX") or "g++", "clang++"]
    inductor = any(map(shutil.which, compilers))
    if not inductor:
        print(f"torch.compile is left out: no C++ compiler ({', '.join(compilers)})", file=sys.stderr)
    if not args.only and find_spec("transformers") is None:
        chosen = [script for script in chosen if script != "bert"]
        print("bert is left out: transformers is not installed", file=sys.stderr)
    found: list[Row] = []
    for script in chosen:
        print(f"{script} ...", file=sys.stderr)
        found += rows(script, 3 if args.quick else None, inductor)
    return finish("first_minute", found, args, wide=True)


if __name__ == "__main__":
    exit_with(main)
