"""The rows of the results file: a JSON object on a line, for each op and dtype."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool", "complex64")
LARGE = (*DTYPES, "int8")
"Dtypes of the sweep at sizes of work."
CHIPS = ("v6e", "v5e")
"TPUs that programs are compiled for, though they are not here."
LOWERED = ("cuda",)
"Platforms that programs are lowered for, to StableHLO: their compilers need the device."
CALL = "call"
"""The name of the check of an entry's calls, in a row of compiled programs."""
Job = tuple[str, str, int, int]  # op, dtype, samples at most, seed
Rows = dict[tuple[str, str], dict[str, Any]]


@dataclass
class Row:
    """The row of an entry: by check (samples that passed, all samples), and the failures."""

    op: str
    dtype: str
    k: int
    seed: int = 0
    samples: int = 0
    checks: dict[str, list[int]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""  # why some samples did not run
    random: bool = False  # whether the values of some were not compared
    seconds: float = 0.0  # of CPU
    equal: int = 0  # results with the CPU's bits, where a sweep counts them
    within: int = 0  # results with other bits that are as exact as the CPU's
    unjudged: int = 0  # results whose exact value is not known, near the CPU's

    def add(self, check: str, sample: int, error: BaseException | None, call: str = "") -> None:
        passed = self.checks.setdefault(check, [0, 0])
        passed[0] += error is None
        passed[1] += 1
        if error is not None and sum(f["check"] == check for f in self.failures) < 3:
            kind, message = type(error).__name__, " ".join(str(error).split())[:400]
            self.failures.append({"check": check, "sample": sample, "call": call, "error": kind, "message": message})


def finished(results: Path) -> dict[Job, dict[str, Any]]:
    """The rows of a results file by job. A line that a killed sweep left half written does not count."""
    rows: dict[Job, dict[str, Any]] = {}
    for line in results.read_text().splitlines() if results.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows[row["op"], row["dtype"], row["k"], row["seed"]] = row
    return rows


def latest(results: Path) -> Rows:
    """One row for each op and dtype, of the sweep with the most samples."""
    rows: Rows = {}
    for (op, dtype, k, _), row in finished(results).items():
        old = rows.get((op, dtype))
        if old is None or not k or 0 < old["k"] <= k:
            rows[op, dtype] = row
    return rows
