"""What a cut costs the host when it finds its program, by the number of results.

    python benchmarks/cuts.py

Microseconds of CPU time from the end of recording until the program is launched, smallest of many. Each result is a
4x4 tensor in memory of its own, or takes the memory of the one it overwrites ("updated in place", as parameters are).
`jax.jit` is the same program called through jax: the floor of XLA's own launch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from common import Row, compile_at_once, exit_with, finish, parser

import lazytpu

SIZES = (1, 10, 100, 1000)


def cut_of(record: Callable[[], object], repeats: int) -> float:
    """Microseconds of the cut after `record`, whose result is kept until then."""
    best = float("inf")
    for _ in range(repeats + 3):
        kept = record()
        start = time.thread_time()
        lazytpu.mark_step()
        best = min(best, time.thread_time() - start)
        lazytpu.sync()
        del kept
    return 1e6 * best


def through_jax(count: int, repeats: int) -> float:
    """Microseconds of a jitted function with as many results, called with as many arguments."""
    import jax
    import numpy as np

    arrays = [jax.device_put(np.ones((4, 4), np.float32)) for _ in range(count)]
    function = jax.jit(lambda given: [x + 1 for x in given])
    best = float("inf")
    for _ in range(repeats + 3):
        start = time.thread_time()
        results = function(arrays)
        best = min(best, time.thread_time() - start)
        jax.block_until_ready(results)
    return 1e6 * best


def main() -> int:
    args = parser("cuts", __doc__).parse_args()
    compile_at_once()
    repeats = 3 if args.quick else 50
    rows: list[Row] = []
    for count in SIZES[:3] if args.quick else SIZES:
        tensors = [torch.ones(4, 4).to("tpu") for _ in range(count)]
        made = cut_of(lambda tensors=tensors: [x + 1 for x in tensors], repeats)
        updated = cut_of(lambda tensors=tensors: [x.add_(1) for x in tensors], repeats)
        results = "1 result" if count == 1 else f"{count:,} results"
        rows += [
            Row(f"{results}", made, "µs"),
            Row(f"{results}, updated in place", updated, "µs"),
            Row(f"{results}, jax.jit", through_jax(count, repeats), "µs"),
        ]
    return finish("cuts", rows, args)


if __name__ == "__main__":
    exit_with(main)
