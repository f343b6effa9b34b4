"""Distributes the cases to child processes and judges their answers; `python -m tools.bad_inputs --help`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

from tools.bad_inputs import __doc__ as SUMMARY
from tools.children import answers

GIB = 1 << 30  # bytes


def main() -> int:
    parser = argparse.ArgumentParser(
        "bad_inputs", description=SUMMARY, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=1000, help="how many cases (1000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first (0)")
    parser.add_argument("--only", default="", help="only ops whose name contains this")
    parser.add_argument("--limit", type=float, default=60, help="seconds that one case may take (60)")
    parser.add_argument("--memory", type=int, default=24, help="GiB of address space of a child (24)")
    parser.add_argument("--lines", type=int, default=400, help="characters of a case that are shown (400)")
    asked = parser.parse_args()
    counts = Counter[str]()
    worker = [sys.executable, "-m", "tools.bad_inputs.worker"]
    numbers = range(asked.first, asked.first + asked.n)
    for answer in answers(numbers, lambda chunk: [*worker, chunk, asked.only, str(asked.memory * GIB)], asked.limit):
        verdict = judged(answer)
        counts[verdict] += 1
        if verdict not in ("agree", "nothing", "cpu died"):
            print(f"{answer['number']} {verdict}: {answer.get('text', '')[: asked.lines]}")
            print(f"    cpu {answer.get('want')}\n    tpu {answer.get('got')} {answer.get('mode')}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    return 1 if set(counts) - {"agree", "nothing", "cpu died"} else 0


def judged(answer: dict[str, Any]) -> str:
    """Return the verdict on one case."""
    stage, want, got = answer["stage"], answer.get("want"), answer.get("got")
    if stage == "nothing":
        return "nothing"
    if stage != "done":
        return "cpu died" if stage == "cpu" else f"DIED ({answer['end']})"
    if want is None:
        return "agree" if got is None else "only tpu refuses"
    if "allocate" in want[1] or "Storage size" in want[1]:
        return "agree" if got is None or got[0] in ("RuntimeError", "OutOfMemoryError") else "another type"
    if got is None:
        return "only the cpu refuses"
    if got[0] != want[0]:
        return "another type"
    return "late" if got[2] and not answer["late"] else "agree"


if __name__ == "__main__":
    sys.exit(main())
