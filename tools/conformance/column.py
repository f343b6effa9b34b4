"""From the results of `compiling` to the part of the published table about chips that are not there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from tools.conformance.rows import CALL, CHIPS, DTYPES, LOWERED, latest

OUTCOMES = ("compiles", "refused", "fails", "aborts")
"""The outcomes of an entry on a chip: every program compiles; a call raises NotImplementedError; the compiler refuses a
program, or a call raises another error; the compiler's process ends, or takes too long."""
INTRO = """## Compiled for TPUs and GPUs, without one

`make tpu-column` records the forward and backward programs of each entry's smallest samples that differ in structure,
and has libtpu {libtpu} compile them for one TPU of a generation ({chips}); nothing runs, so no value is checked. For a
GPU ("cuda"), programs are only lowered to StableHLO, since their compiler comes with the device.

An entry "compiles" if all of its programs do. It is "refused" by a `NotImplementedError`, which the call itself raises
on such a device and in a rehearsal for it (`lazytpu.tpu_report`). It "fails" if the compiler refuses a program, and
"aborts" if the compiler's process ends or takes too long. Cases without a row were not compiled.
"""


def outcome(row: dict[str, Any]) -> str:
    """One of OUTCOMES, or "" where there was nothing to compile."""
    failures = row["failures"]
    if any(f["check"] == "process" for f in failures):
        return "aborts"
    if any(f["check"] != CALL or f["error"] != "NotImplementedError" for f in failures):
        return "fails"
    return "refused" if failures else "compiles" if row["checks"] else ""


def add(made: dict[str, Any], folder: Path, old: dict[str, Any]) -> None:
    """Add the results of every chip to the document `made`; for a chip without results, take them from `old`. An entry
    has its outcome by chip under "compiled", and "compiled" of the document has the common facts."""
    made["compiled"] = {}
    for chip in (*CHIPS, *LOWERED):
        rows = latest(folder / f"{chip}.jsonl")
        if rows:
            made["compiled"][chip] = _summary(list(rows.values()))
            outcomes = {key: outcome(row) for key, row in rows.items()}
        elif chip in old.get("compiled", {}):
            made["compiled"][chip] = old["compiled"][chip]
            entries = ((op, dtype, entry) for op, by_dtype in old["ops"].items() for dtype, entry in by_dtype.items())
            outcomes = {(op, dtype): entry.get("compiled", {}).get(chip, "") for op, dtype, entry in entries}
        else:
            continue
        for (op, dtype), how in outcomes.items():
            entry = made["ops"].get(op, {}).get(dtype)
            if how and entry is not None:
                entry["compiled"] = {**entry.get("compiled", {}), chip: how}


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = {}
    reasons: dict[str, dict[str, list[str]]] = {how: {} for how in OUTCOMES[1:]}
    for row in sorted(rows, key=lambda r: (r["op"], DTYPES.index(r["dtype"]))):
        how = outcome(row)
        if not how:
            continue
        count = counts.setdefault(row["dtype"], Counter())
        count.update({how: 1, "programs": sum(n for check, (_, n) in row["checks"].items() if check != CALL)})
        count["at_most"] = max(count["at_most"], row["k"])
        if how != "compiles":
            reasons[how].setdefault(_reason(row), []).append(f"{row['op']} {row['dtype']}")
    return {"summary": {dtype: dict(counts[dtype]) for dtype in DTYPES if dtype in counts}, "reasons": reasons}


def _reason(row: dict[str, Any]) -> str:
    """The first message, without the overload that it begins with and the compiler's remarks about the source."""
    return re.sub(r"^aten\.\S+: |,? *metadata=\{.*|Suspected Python.*", "", row["failures"][0]["message"])


def section(chips: dict[str, Any], libtpu: str) -> list[str]:
    """The lines of the page."""
    if not chips:
        return []
    lines = [INTRO.format(libtpu=libtpu, chips=", ".join(c for c in CHIPS if c in chips))]
    lines.append("| chip | dtype | samples at most | programs | " + " | ".join(OUTCOMES) + " |")
    lines.append("|" + "---|" * (4 + len(OUTCOMES)))
    for name, chip in chips.items():
        for dtype, count in chip["summary"].items():
            cells = [f"{count.get(key, 0):,}" for key in ("at_most", "programs", *OUTCOMES)]
            lines.append(f"| {name} | {dtype} | " + " | ".join(cells) + " |")
    lines += ["", "| chips | outcome | entries | reason |", "|---|---|---|---|"]
    merged: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for name, chip in chips.items():
        for how, by_message in chip["reasons"].items():
            for message, which in by_message.items():
                merged.setdefault((how, message, tuple(which)), []).append(name)
    for (how, message, which), names in sorted(merged.items(), key=lambda item: OUTCOMES.index(item[0][0])):
        entries = ", ".join(f"`{op}` {', '.join(dtypes)}" for op, dtypes in _by_op(which).items())
        lines.append(f"| {', '.join(names)} | {how} | {entries} | {cell(message)} |")
    return [*lines, ""]


def _by_op(which: tuple[str, ...]) -> dict[str, list[str]]:
    dtypes_by_op: dict[str, list[str]] = {}
    for entry in which:
        op, _, dtype = entry.rpartition(" ")
        dtypes_by_op.setdefault(op, []).append(dtype)
    return dtypes_by_op


def cell(text: str) -> str:
    """A message as a cell of a table."""
    text = text if len(text) <= 240 else text[:237] + "…"
    return text.replace("|", "\\|").replace("<", "&lt;")


def mark(entries: dict[str, Any], chip: str) -> str:
    """Return the mark of an op in a chip's column: ✓ when all its compiled programs compile, else the failing
    dtypes."""
    outcomes = {dtype: entry["compiled"][chip] for dtype, entry in entries.items() if chip in entry.get("compiled", {})}
    wrong: dict[str, list[str]] = {}
    for dtype, how in outcomes.items():
        if how != "compiles":
            wrong.setdefault(how, []).append(dtype)
    return "; ".join(f"{how} {', '.join(dtypes)}" for how, dtypes in wrong.items()) or ("✓" if outcomes else "")
