"""The published table from the results: one JSON document, and the page that is generated from it."""

from __future__ import annotations

import copy
import json
from collections import Counter
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lazytpu.inspection.highlight import console
from tools.conformance import column, sizes
from tools.conformance.gaps import Gap, load, reason
from tools.conformance.page import page
from tools.conformance.rows import DTYPES, Rows, latest
from tools.upstream.table import BEGIN


def document(rows: Rows, gaps: tuple[Gap, ...], overloads: dict[str, dict[str, int]]) -> dict[str, Any]:
    """Return the whole table as a JSON document."""
    ops: dict[str, dict[str, Any]] = {}
    missing: list[dict[str, Any]] = []
    for (op, dtype), row in sorted(rows.items()):
        failed = sorted({f["check"] for f in row["failures"]})
        entry: dict[str, Any] = {"status": status(row), "samples": row["samples"], "checks": row["checks"]}
        if row["random"]:
            entry["metadata_only"] = True
        if entry["status"] == "not compared":
            entry["reason"] = row["reason"]
        ops.setdefault(op, {})[dtype] = entry
        for check in failed:
            gap = reason(gaps, op, dtype, check)
            failure = next(f for f in row["failures"] if f["check"] == check)
            missing.append(
                {
                    "op": op,
                    "dtype": dtype,
                    "check": check,
                    "whose": gap.whose if gap else "",
                    "reason": gap.reason if gap else "",
                    "error": failure["error"],
                    "message": failure["message"],
                }
            )
    return {
        "versions": {name: version(name) for name in ("lazytpu", "torch", "jax")},
        "summary": {dtype: summary([r for (_, d), r in rows.items() if d == dtype]) for dtype in DTYPES},
        "overloads": overloads,
        "missing": missing,
        "ops": ops,
        "compiled": {},
        "padding": {},
    }


def status(row: dict[str, Any]) -> str:
    """Return "pass", "fail", or "not compared" if the CPU has no result to compare with."""
    if row["failures"]:
        return "fail"
    return "pass" if row["checks"] else "not compared"


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts of one dtype: ops by status, and for each check (ops that pass it, ops that have it)."""
    counts = Counter(status(row) for row in rows)
    checks: dict[str, list[int]] = {}
    for row in rows:
        for check, (passed, total) in row["checks"].items():
            of_check = checks.setdefault(check, [0, 0])
            of_check[0] += passed == total
            of_check[1] += 1
    return {
        "ops": len(rows),
        "pass": counts["pass"],
        "fail": counts["fail"],
        "not_compared": counts["not compared"],
        "at_most": max((row["k"] for row in rows), default=0),
        "samples": sum(row["samples"] for row in rows),
        "checks": checks,
    }


def stale(rows: Rows, gaps: tuple[Gap, ...]) -> list[Gap]:
    """Gaps that no failure needs. Only a whole sweep can tell."""
    failures = [(op, dtype, f["check"]) for (op, dtype), row in rows.items() for f in row["failures"]]
    return [gap for gap in gaps if not any(gap.covers(*failure) for failure in failures)]


def write(results: Path, chips: Path, padded: Path, folder: Path) -> int:
    """Write docs/conformance.json and docs/conformance.md; return 1 when there are no results. Entries without new
    results, in `results`, `chips` or `padded`, keep their published values."""
    rows, gaps, out = latest(results), load(), console()
    published = folder / "conformance.json"
    old: dict[str, Any] = json.loads(published.read_text()) if published.exists() else {}
    if not rows and not (old and (chips.is_dir() or padded.exists())):
        out.print(f"{results} has no results; make conformance writes them")
        return 1
    data = document(rows, gaps, overload_counts()) if rows else copy.deepcopy(old)
    column.add(data, chips, old)
    sizes.add(data, padded, old)
    if find_spec("libtpu") is not None:
        data["versions"]["libtpu"] = version("libtpu")
    published.write_text(dumps(data))
    file = folder / "conformance.md"
    _, begin, upstream = file.read_text().partition(BEGIN) if file.exists() else ("", "", "")
    file.write_text(page(data) + (f"\n{begin}{upstream}" if begin else ""))  # `make upstream` writes that section
    unexplained = sum(not m["whose"] for m in data["missing"])
    out.print(f"{len(rows):,} entries; {len(data['missing'])} failures, {unexplained} of them without a reason")
    for gap in stale(rows, gaps) if rows else []:
        out.print(f"no failure needs the gap of {gap.ops}: {gap.reason}")
    return 0


def dumps(contents: dict[str, Any]) -> str:
    """The document with one line for each dtype, gap and op, so that a change shows as one."""
    lines = []
    for key, value in contents.items():
        items = (
            [json.dumps(v) for v in value]
            if isinstance(value, list)
            else [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
        )
        opening, closing = "[]" if isinstance(value, list) else "{}"
        lines.append(f" {json.dumps(key)}: {opening}\n" + ",\n".join(f"  {item}" for item in items) + f"\n {closing}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def overload_counts() -> dict[str, dict[str, int]]:
    """How the overloads of aten are expressed, of the core set and of all (tools/coverage.py)."""
    from lazytpu.frontend.activation import activate
    from tools.coverage import how, overloads

    activate()
    return {name: dict(Counter(how(op) for op in overloads(name == "core"))) for name in ("core", "all")}


def show(results: Path) -> int:
    """Print the failures, one line each: op, dtype, check, number of the sample, error, and the known reason."""
    gaps, rows, out = load(), latest(results), console()
    for (op, dtype), row in sorted(rows.items()):
        for f in row["failures"]:
            gap = reason(gaps, op, dtype, f["check"])
            cause = f"  [{gap.whose}: {gap.reason}]" if gap else ""
            line = f"{op} {dtype} {f['check']} {f['sample']} ({f['call']}): {f['error']}: {f['message'][:240]}{cause}"
            out.print(line, markup=False, soft_wrap=True)
    out.print(f"{sum(status(r) == 'pass' for r in rows.values()):,} of {len(rows):,} entries pass")
    return 0
