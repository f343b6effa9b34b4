"""From the results of `padding` to the part of the published table about programs for many sizes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from tools.conformance.column import cell
from tools.conformance.rows import Rows, latest

REFUSED = "OfItsSize"
INTRO = """## One program for many sizes

`make padding-sweep` runs a sample of each op forward and backward at three sizes: one size of it is scaled by 2 and
by 3 wherever it occurs, if the CPU takes these calls. The third size must need no program of its own
([padding](padding.md)), and give the CPU's values, with NaN in all padding. {padded} of {ops} ops do ({percent});
{wrong} are wrong. Those that are refused get a program for each size, for these reasons:
"""


def add(made: dict[str, Any], results: Path, old: dict[str, Any]) -> None:
    """Add the results to the document `made`; without results, take them from `old`."""
    rows = latest(results)
    made["padding"] = summary(rows) if rows else old.get("padding", {})


def summary(rows: Rows) -> dict[str, Any]:
    """Count the ops that are padded, wrong, or refused, by reason. Ops that the device lacks, or without a size to
    scale, do not count."""
    counts: Counter[str] = Counter()
    refused: dict[str, list[str]] = {}
    for (op, _), row in sorted(rows.items()):
        errors = {failure["error"] for failure in row["failures"]}
        if not row["samples"] or "NotImplementedError" in errors:
            continue
        counts["ops"] += 1
        counts["padded"] += not errors
        counts["wrong"] += bool(errors - {REFUSED})
        if errors == {REFUSED}:
            refused.setdefault(_reason(row["failures"][0]["message"]), []).append(op)
    return {**{key: counts[key] for key in ("ops", "padded", "wrong")}, "refused": refused}


def _reason(message: str) -> str:
    """A refusal without its numbers and places."""
    text = re.sub(r"at the op `(lazytpu\.\w+|func\.func).*", r"at the op `\1`", " ".join(message.split()))
    text = re.sub(r"^at its bound, (aten\.\S+) at .*", r"it has no form at the bound: \1", text)
    text = re.sub(r"(is|has) \[[-\d, ]+\] at the sizes .*?, which", r"\1 at some sizes what", text)
    text = re.sub(r"\{[^{}]*\}", "some sizes", text)
    return re.sub(r"\d+", "…", text)


def section(padding: dict[str, Any]) -> list[str]:
    """The lines of the page."""
    if not padding:
        return []
    share = f"{int(1000 * padding['padded'] / max(1, padding['ops'])) / 10:g} %"
    lines = [INTRO.format(**padding, percent=share), "| ops | reason |", "|---|---|"]
    for reason, ops in sorted(padding["refused"].items(), key=lambda item: (-len(item[1]), item[1])):
        lines.append(f"| {', '.join(f'`{op}`' for op in ops)} | {cell(reason)} |")
    return [*lines, ""]
