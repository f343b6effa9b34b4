"""The record of results by file, docs/upstream.json, from which the table is made.

A run of some files replaces the entries of these files. An entry has the counts of its verdicts and, by reason, those
of its refusals, skips and requirements; entries without reasons are of runs before the record.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tools.upstream.verdicts import kind_of_fault, kind_of_refusal, of_others, reason_of_skip, verdict

NAME = "upstream.json"
COUNTS = ("verdicts", "refusals", "faults", "requirements", "skips")


def origin(commit: str) -> dict[str, str]:
    """Return the commit, day and release of torch of results of this process."""
    return {"commit": commit or "unknown", "date": f"{datetime.now(UTC):%Y-%m-%d}", "torch": torch.__version__}


def entries(rows: Iterable[Mapping[str, Any]], seed: int, commit: str, note: str = "") -> dict[str, dict[str, Any]]:
    """Return one entry for each file that has results of this seed. A result that does not have its origin gets that
    of this process and `commit`."""
    rows = [row for row in rows if row["seed"] == seed]
    tests = {row["file"]: row["tests"] for row in rows if row["stage"] == "listed"}
    origins: dict[str, dict[str, dict[str, None]]] = {}  # of each file: ordered sets
    by_file: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["stage"] == "listed" or row["file"] not in tests:  # the list is lost: the next run of the file has one
            continue
        for name, value in origin(commit).items():
            origins.setdefault(row["file"], {}).setdefault(name, {})[row.get(name, value)] = None
        entry = by_file.setdefault(
            row["file"].removesuffix(".py"),
            {
                "tests": tests[row["file"]],
                "seed": seed,
                "note": note,
                **{name: Counter[str]() for name in COUNTS},
            },
        )
        entry |= {name: ", ".join(values) for name, values in origins[row["file"]].items()}
        outcome = verdict(row)
        entry["verdicts"][outcome] += 1
        if outcome == "skipped":
            entry["skips"][reason_of_skip(row["reason"])] += 1
        elif outcome == "refused":
            entry["refusals"][kind_of_refusal(row) or ""] += 1
        elif outcome == "failed":
            entry["faults"][kind_of_fault(row) or "others"] += 1
        elif outcome == "incomparable" and row.get("status") == "failed" and (expected := of_others(row)):
            entry["requirements"][expected] += 1
    return by_file


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of all files, in the order in which the table has them; none if there is no record."""
    path = folder / NAME
    return json.loads(path.read_text()) if path.exists() else {}


def merge(folder: Path, replaced: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Write these entries to the record, in place of earlier ones of the same files. Returns all entries."""
    merged = {**read(folder), **replaced}
    (folder / NAME).write_text(json.dumps(merged, indent=1) + "\n")
    return merged


def total(entries: Iterable[Mapping[str, Any]], counted: str) -> Counter[str]:
    """Return the sum of the counts of this name ("verdicts", "skips", ...)."""
    return sum((Counter(entry.get(counted, {})) for entry in entries), Counter[str]())
