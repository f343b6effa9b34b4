"""docs/conformance.md, from the document that docs/conformance.json holds."""

from __future__ import annotations

from typing import Any

from tools.conformance import sizes
from tools.conformance.column import cell, mark, section

ORDER = ("forward", "backward", "inplace", "out", "strided", "view", "errors", "process")
INTRO = """# Conformance

torch's own op database, {total} ops, on `"tpu"` compared with torch on the CPU. `make coverage` writes this page from
the results of `make conformance`; [conformance.json](conformance.json) is machine-readable. Versions: {versions}.
[At sizes of work](conformance-large.md) values are compared by their errors.

For each op and dtype torch draws samples, and each sample runs on both devices. An op passes at a dtype if every check
passes for every sample:

| check | what must be the same as on the CPU |
|---|---|
| forward | values, dtype, shape and strides of the results, and which of them are views of an input |
| backward | the gradient of every input that has one, at random cotangents |
| inplace | the input after the in-place form, which is also what it returns |
| out | `out=` of the right shape; for two samples also with other strides, which are kept, and empty, to be resized |
| strided | everything in `forward`, for inputs that are views with gaps full of NaN; for every other sample |
| view | the input, after a write into a result that is a view of it |
| errors | for bad inputs, the type of the exception, raised by the call itself unless it depends on values |

Random results, and memory that nobody wrote, have no values to compare: only their metadata is compared (marked °
below). No op runs on the CPU: one that lazytpu does not have raises `NotImplementedError`.
"""
LEGEND = """✓ every check passes · otherwise the checks that fail · – not comparable · empty where the CPU does not have
it · under a chip: ✓ its compiler accepts everything, otherwise the dtypes that are refused, or fail
"""


def page(made: dict[str, Any]) -> str:
    """The page as Markdown."""
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items())
    sections = [
        INTRO.format(total=len(made["ops"]), versions=versions),
        "## By dtype\n",
        *_summary(made["summary"]),
        "",
        *_overloads(made["overloads"]),
        *section(made["compiled"], made["versions"].get("libtpu", "")),
        *sizes.section(made.get("padding", {})),
        "## What is missing\n",
        *_missing(made["missing"]),
        "",
        "## What cannot be compared\n",
        *_not_compared(made["ops"]),
        "",
        "## Every op\n",
        LEGEND,
        *_every(made["ops"], list(made["summary"]), made["compiled"]),
    ]
    return "\n".join(sections).rstrip() + "\n"


def _summary(by_dtype: dict[str, dict[str, Any]]) -> list[str]:
    checks = [c for c in ORDER if any(c in s["checks"] for s in by_dtype.values())]
    lines = ["| dtype | ops | pass | | samples | " + " | ".join(checks) + " |", "|" + "---|" * (5 + len(checks))]
    for dtype, s in by_dtype.items():
        ran = s["pass"] + s["fail"]
        if not ran:
            continue
        cells = ["{} / {}".format(*s["checks"][c]) if c in s["checks"] else "" for c in checks]
        lines.append(
            f"| {dtype} | {ran} | {s['pass']} | **{_percent(s['pass'], ran)}** | {s['samples']:,} | "
            + " | ".join(cells)
            + " |"
        )
    return lines


def _percent(part: int, whole: int) -> str:
    """Rounded down: 100 % is all."""
    return f"{int(1000 * part / whole) / 10:g} %"


def _overloads(counts: dict[str, dict[str, int]]) -> list[str]:
    if not counts:
        return []
    lines = [
        "## Overloads of ATen\n",
        "How each is expressed (`python -m tools.coverage --all` lists them).\n",
        "| overloads | " + " | ".join(kinds := sorted({k for c in counts.values() for k in c})) + " |",
    ]
    lines.append("|" + "---|" * (1 + len(kinds)))
    for name, of in counts.items():
        lines.append(f"| {name} | " + " | ".join(f"{of.get(kind, 0):,}" for kind in kinds) + " |")
    return [*lines, ""]


def _missing(missing: list[dict[str, Any]]) -> list[str]:
    if not missing:
        return ["Nothing."]
    groups: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for m in missing:
        reason = m["reason"] or f"Not yet explained: {m['error']}: {m['message']}"
        checks = groups.setdefault((m["op"], m["whose"], reason), {})
        checks.setdefault(m["dtype"], []).append(m["check"])
    lines = ["| op | dtypes | checks | whose | reason |", "|---|---|---|---|---|"]
    for (op, whose, reason), by_dtype in groups.items():
        checks = [c for c in ORDER if any(c in failed for failed in by_dtype.values())]
        lines.append(f"| `{op}` | {', '.join(by_dtype)} | {', '.join(checks)} | {whose} | {cell(reason)} |")
    return lines


def _not_compared(ops: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| op | dtypes | reason |", "|---|---|---|"]
    for op, entries in ops.items():
        dtypes = [dtype for dtype, entry in entries.items() if entry["status"] == "not compared"]
        if dtypes:
            lines.append(f"| `{op}` | {', '.join(dtypes)} | {cell(entries[dtypes[0]]['reason'])} |")
    return lines if len(lines) > 2 else ["Nothing."]


def _every(ops: dict[str, dict[str, Any]], dtypes: list[str], chips: dict[str, Any]) -> list[str]:
    lines = ["| op | " + " | ".join([*dtypes, *chips]) + " |", "|" + "---|" * (1 + len(dtypes) + len(chips))]
    for op, entries in ops.items():
        cells = [_status(entries.get(dtype)) for dtype in dtypes]
        cells += [mark(entries, chip) for chip in chips]
        random = "°" if any(entry.get("metadata_only") for entry in entries.values()) else ""
        lines.append(f"| `{op}`{random} | " + " | ".join(cells) + " |")
    return lines


def _status(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return ""
    if entry["status"] != "fail":
        return "✓" if entry["status"] == "pass" else "–"
    failed = [c for c in ORDER if c in entry["checks"] and entry["checks"][c][0] < entry["checks"][c][1]]
    return " ".join(failed)
