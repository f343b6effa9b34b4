"""Serving requests of many lengths by continuous batching (`examples/serving.py`), beside torch on the CPU.

    python benchmarks/serving.py

A process with an empty cache serves all requests twice: the first time it compiles its programs. On a CPU both devices
are the same cores, and a model this small shows what recording and launching cost.

    programs  made in both runs
    first     tokens per second, compilation included
    again     tokens per second when the programs are there
    of CPU    the same as a part of what torch's own CPU device gives
    differ    requests whose tokens are not those of the CPU
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import Row, exit_with, finish, parser

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "serving.py"
QUICK = "--requests 4 --longest 12 --tokens 5 --at-once 2 --layers 1 --width 16".split()


def served(device: str, quick: bool) -> dict[str, Any]:
    """What the example reports in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), "--device", device, *(QUICK if quick else ())],
            env={**os.environ, "LAZYTPU_CACHE_DIR": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> int:
    args = parser("serving", __doc__).parse_args()
    cpu, tpu = served("cpu", args.quick), served("tpu", args.quick)
    differ = sum(one != other for one, other in zip(cpu["answers"], tpu["answers"], strict=True))
    again = tpu["again_tokens_per_second"]
    rows = [
        Row("programs", tpu["programs"], "", 4 + 4 * math.log2(tpu["tokens"])),
        Row("first", tpu["first_tokens_per_second"], "tokens/s"),
        Row("again", again, "tokens/s"),
        Row("of CPU", again / cpu["again_tokens_per_second"], "×"),
        Row("differ", differ, "requests", 0),
    ]
    return finish("serving", rows, args)


if __name__ == "__main__":
    exit_with(main)
