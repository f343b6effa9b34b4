"""A fresh process with an empty cache and with a full one.

    python benchmarks/cache.py

Each process imports torch and lazytpu, builds a transformer with AdamW and makes its first steps, with a cache folder
of this benchmark's own. Seconds of wall time:

    import       `import torch, lazytpu`, and the engine's start
    recording    the script's own part of the first step
    first step   from the first op of the model to the launch of its program

The second process must compile nothing, and its first step be launched within 1.5 times import and recording.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import Row, compile_at_once, exit_with, finish, parser

TARGET = 1.5  # of import and recording
STEPS = 3


def child(layers: int) -> dict[str, Any]:
    """One process: what it took, in seconds."""
    start = time.perf_counter()
    import torch

    import lazytpu

    torch.ones(1).to("tpu")
    compile_at_once()
    imported = time.perf_counter() - start
    from workloads import Training, transformer

    step = Training(lambda: transformer(layers))
    lazytpu.sync()
    before = lazytpu.metrics()
    begun = time.perf_counter()
    step()
    recorded = time.perf_counter() - begun
    lazytpu.mark_step()
    launched = time.perf_counter() - begun
    for _ in range(STEPS - 1):
        step()
        lazytpu.mark_step()
    lazytpu.sync()
    after = lazytpu.metrics()
    return {
        "import": imported,
        "recording": recorded,
        "first step": launched,
        "compiles": after["compiles"],
        "misses": after["misses"] - before["misses"],
    }


def fresh(folder: str, layers: int) -> dict[str, Any]:
    """The figures of a process of its own."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), "--child", "--layers", str(layers)],
        env={**os.environ, "LAZYTPU_CACHE_DIR": folder},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def best(folder: str, layers: int, repeats: int) -> dict[str, Any]:
    """Of several processes, the one with the shortest first step."""
    return min((fresh(folder, layers) for _ in range(repeats)), key=lambda found: found["first step"])


def main() -> int:
    options = parser("cache", __doc__)
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--layers", type=int, default=12, help="of the transformer (default: 12; 1 when quick)")
    args = options.parse_args()
    layers = 1 if args.quick else args.layers
    if args.child:
        print(json.dumps(child(args.layers)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        cold = fresh(folder, layers)
        warm = best(folder, layers, 1 if args.quick else 5)
        kept = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    total = warm["import"] + warm["first step"]
    own = warm["import"] + warm["recording"]
    rows = [
        Row("cold: first step", cold["first step"], "s"),
        Row("cold: programs compiled", cold["compiles"], ""),
        Row("warm: import", warm["import"], "s"),
        Row("warm: recording of the first step", warm["recording"], "s"),
        Row("warm: first step", warm["first step"], "s"),
        Row("warm: programs compiled", warm["compiles"], "", 0),
        Row("warm: import and first step, of import and recording", total / own, "", TARGET),
        Row("the cache's folder", kept / 2**20, "MiB"),
    ]
    return finish("cache", rows, args)


if __name__ == "__main__":
    exit_with(main)
