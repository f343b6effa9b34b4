"""Deals the cases to child processes and judges what they answer; `python -m tools.bad_inputs --help`."""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tools.bad_inputs import __doc__ as SUMMARY

GIB = 1 << 30


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
    for answer in answers(list(range(asked.first, asked.first + asked.n)), asked.only, asked.limit, asked.memory):
        verdict = judged(answer)
        counts[verdict] += 1
        if verdict not in ("agree", "nothing", "cpu died"):
            print(f"{answer['number']} {verdict}: {answer.get('text', '')[: asked.lines]}")
            print(f"    cpu {answer.get('want')}\n    tpu {answer.get('got')} {answer.get('mode')}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    return 1 if set(counts) - {"agree", "nothing", "cpu died"} else 0


def judged(answer: dict[str, Any]) -> str:
    """What is to be said of one case."""
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


def answers(numbers: list[int], only: str, limit: float, memory: int) -> Iterator[dict[str, Any]]:
    """One answer for each case, from as many children as it takes."""
    rest = list(numbers)
    while rest:
        chunk, known = rest[:400], dict[int, dict[str, Any]]()
        command = [sys.executable, "-m", "tools.bad_inputs.worker", ",".join(map(str, chunk)), only, str(memory * GIB)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_pass_on, args=(child, lines), daemon=True).start()
        end = "hangs"
        try:
            while (line := lines.get(timeout=limit if known else 4 * limit)) is not None:
                said = json.loads(line)
                known.setdefault(said["number"], {}).update(said)
                if said["stage"] in ("done", "nothing"):
                    yield known[said["number"]]
            end = f"exit {child.wait()}"
        except queue.Empty:
            child.kill()
            child.wait()
        last = known.get(max(known, default=-1))
        if not known:
            raise RuntimeError(f"a child said nothing ({end})")
        if last is not None and last["stage"] not in ("done", "nothing"):
            yield {**last, "end": end}
        rest = [n for n in rest if n > max(known)]


def _pass_on(child: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("{"):
            lines.put(line)
    lines.put(None)


if __name__ == "__main__":
    sys.exit(main())
