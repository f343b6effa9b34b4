"""Distributes the cases to child processes and lists those that died or differ; `--help`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from typing import Any

from tools.children import answers
from tools.random_convolutions import __doc__ as SUMMARY

GIB = 1 << 30  # bytes
# XLA's passes before LLVM are unchanged, and it takes half of the time.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


FINE = {"agree", "cpu died"}


def main() -> int:
    parser = argparse.ArgumentParser(
        "random_convolutions", description=SUMMARY, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=5000, help="how many cases (5000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first (0)")
    parser.add_argument("--limit", type=float, default=120, help="seconds that one case may take (120)")
    parser.add_argument("--memory", type=int, default=24, help="GiB of address space of a child (24)")
    parser.add_argument("--optimized", action="store_true", help="compile as users do, in twice the time")
    asked = parser.parse_args()
    worker = [sys.executable, "-m", "tools.random_convolutions.worker"]
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as cache:
        environment = {"LAZYTPU_CACHE_DIR": cache} | ({} if asked.optimized else {"XLA_FLAGS": QUICK})
        numbers = range(asked.first, asked.first + asked.n)
        for answer in answers(
            numbers, lambda chunk: [*worker, chunk, str(asked.memory * GIB)], asked.limit, environment
        ):
            verdict = judged(answer)
            counts[verdict] += 1
            if verdict not in FINE:
                print(f"{answer['number']} {verdict}: {answer['text']}")
                print(f"    {answer.get('mode', '')} {answer.get('difference', '')}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    return 1 if set(counts) - FINE else 0


def judged(answer: dict[str, Any]) -> str:
    """The verdict on one case."""
    if answer["stage"] != "done":
        return "cpu died" if answer["stage"] == "cpu" else f"DIED ({answer['end']})"
    return "agree" if answer["difference"] is None else "differs"


if __name__ == "__main__":
    sys.exit(main())
