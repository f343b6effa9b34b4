"""docs/conformance-large.md, from the results of `large`."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tools.conformance.column import cell
from tools.conformance.gaps import load, reason
from tools.conformance.rows import LARGE, finished

OPEN = {
    "sort|argsort|msort|topk|kthvalue|mode|median|nanmedian": "torch: which of equal elements comes first is not "
    "defined without stable=True; the CPU's order is its algorithm's, ours the stable one.",
    "maximum|minimum|fmax|fmin|max.binary|min.binary": "torch: which of two zeros is larger is not defined: the "
    "CPU's vectorised loop gives the second, its plain loop the first, as here.",
}
"""What torch leaves open where values are tied, by ops (a regular expression)."""
INTRO = """# Conformance at sizes of work

`make conformance SIZES=large` enlarges samples of torch's op database, plants special values in them, lays them out in
other ways, and runs them on the device, fused and strict, and on the CPU.
Seeds: {seeds}. Date: {date}. Versions: {versions}.

Results that the CPU computes exactly must have the CPU's bits. The error of others against float64 may be twice the
CPU's plus 2 ulp ([`tools/conformance/large.py`](../tools/conformance/large.py)). XLA's CPU client takes subnormal
numbers for zero (https://github.com/jax-ml/jax/issues/16200), so the CPU is set to do so, too.

A count is "passed / run".
"""


def write(results: Path, page: Path) -> None:
    """Write the page of all results of a file."""
    rows = list(finished(results).values())
    page.write_text(text(rows, datetime.now(UTC).strftime("%Y-%m-%d")))


def text(rows: list[dict[str, Any]], date: str) -> str:
    """The page as Markdown: counts by dtype and check, then each difference with its reason where one is known."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("lazytpu", "torch", "jax"))
    seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))
    checks = sorted({check for row in rows for check in row["checks"]})
    lines = [INTRO.format(seeds=seeds, date=date, versions=versions)]
    lines += ["| dtype | ops | not enlarged | samples | " + " | ".join(checks) + " |", "|" + "---|" * (4 + len(checks))]
    for dtype in LARGE:
        of_dtype = [row for row in rows if row["dtype"] == dtype]
        if not of_dtype:
            continue
        passed, run = Counter[str](), Counter[str]()
        for row in of_dtype:
            for check, (good, total) in row["checks"].items():
                passed[check] += good
                run[check] += total
        counts = [f"{passed[check]:,} / {run[check]:,}" for check in checks]
        empty, samples = sum(not row["samples"] for row in of_dtype), sum(row["samples"] for row in of_dtype)
        lines.append(f"| {dtype} | {len(of_dtype)} | {empty} | {samples:,} | " + " | ".join(counts) + " |")
    gaps = load()
    lines += ["", "| op | dtype | check | seed | difference | reason |", "|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (row["op"], row["dtype"], row["seed"])):
        for f in row["failures"]:
            gap = reason(gaps, row["op"], row["dtype"], f["check"].split()[0])
            ties = next((why for ops, why in OPEN.items() if re.fullmatch(ops, row["op"])), "")
            why = f"{gap.whose}: {gap.reason}" if gap else ties
            cells = (f"`{row['op']}`", row["dtype"], f["check"], row["seed"], cell(f["message"]), cell(why))
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"
