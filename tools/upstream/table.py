"""The table of results in docs/conformance.md, from the record by file."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lazytpu
from tools.upstream import record
from tools.upstream.verdicts import LATE, REFUSALS

BEGIN, END = "<!-- upstream -->", "<!-- end of upstream -->"
RUNS_BEGIN, RUNS_END = "<!-- runs of upstream -->", "<!-- end of runs of upstream -->"
ON_HOST, FORCED = "small traces on the host", "programs for all traces (`LAZYTPU_ON_HOST=0`)"
RUNS_TEXT = """### Runs

By default, small traces run on the host as beside a model. With `LAZYTPU_ON_HOST=0` each trace gets a program, so the
values are those of XLA's code, and a test that loops over elements in Python may reach its limit by compile time.
"""
RUNS_HEAD = "| run | seed | commit | date | tests | skipped | comparable | passed | all | without refusals | others |"


def read(results: Path) -> list[dict[str, Any]]:
    """Return the rows of a results file: the last one of each test. A line that a killed run did not complete is
    reported and has no row, so that its test runs again."""
    rows = list[dict[str, Any]]()
    for number, line in enumerate(results.read_text().splitlines() if results.exists() else (), 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"{results}, line {number}, is damaged: its test runs again", file=sys.stderr)
    return list({(row["file"], row["number"], row["seed"]): row for row in rows}.values())


ORDER = ("passed", "refused", "failed", "timed out", "crashed", "incomparable")
Entries = Mapping[str, Mapping[str, Any]]


def text(entries: Entries) -> str:
    """The section of docs/conformance.md, as Markdown, from the entries of the record."""
    total = record.total(entries.values(), "verdicts")
    ran = sum(total[kind] for kind in ORDER)
    comparable = ran - total["incomparable"]
    passed, refused = total["passed"], total["refused"]
    versions, seeds, dates = (joined(entries, name) for name in ("torch", "seed", "date"))
    notes = " ".join(dict.fromkeys(entry["note"] for entry in entries.values() if entry["note"]))
    lines = [
        "## PyTorch's own tests\n",
        "`make upstream FOLDER=...` runs PyTorch's device-generic test files, many tests in one process, each",
        "followed by its control: the same test on the CPU device. A test is comparable if its control passes,",
        "it does not ask for a kernel of torch's CPU by name, and the control does not fail in the same way once",
        'the CPU device has another name than "cpu". Small traces run as they do beside a model: short or varying ones',
        "[on the host](background-compilation.md#small-traces-that-run-on-the-host). A run of some files replaces",
        "the rows of these files; [upstream.json](upstream.json) has the seed, commit and date of each.\n",
        f"torch {versions}, lazytpu {lazytpu.__version__}, seed {seeds}, {dates}:",
        f"**{passed:,} of {comparable:,} comparable tests pass ({percent(passed, comparable)}); without the",
        f"{refused:,} refusals {percent(passed, comparable - refused)}.** {notes}".rstrip() + "\n",
        "| file | tests | run | skipped | " + " | ".join(ORDER) + " |",
        "|" + "---|" * (4 + len(ORDER)),
    ]
    tests = {file: entry["tests"] for file, entry in entries.items()}
    counts = {file: entry["verdicts"] for file, entry in entries.items()}
    for file, of in {**counts, "all": total}.items():
        cells = [tests.get(file, sum(tests.values())), sum(of.get(kind, 0) for kind in ORDER), of.get("skipped", 0)]
        cells += [of.get(kind, 0) for kind in ORDER]
        lines.append(f"| {file} | " + " | ".join(f"{n:,}" for n in cells) + " |")
    kinds = f", each of one of these kinds: {', '.join(REFUSALS)}, {LATE}"
    lines += ["", f"Refusals: {reasons(entries, 'refusals', refused, kinds)}.", ""]
    lines += [f"Failures: {reasons(entries, 'faults', total['failed'])}.", ""]
    if requirements := record.total(entries.values(), "requirements"):
        lines += [f"Incomparable, since they expect: {listing(requirements)}.", ""]
    return "\n".join([*lines, f"Skipped by the tests themselves: {reasons(entries, 'skips', total['skipped'])}."])


def joined(entries: Entries, name: str) -> str:
    """The distinct values of a field, in order."""
    return ", ".join(sorted({value for entry in entries.values() for value in str(entry[name]).split(", ")}))


def reasons(entries: Entries, name: str, count: int, kinds: str = "") -> str:
    """The reasons of refusals, faults or skips, of which there are `count`, as far as entries have them."""
    recorded = record.total(entries.values(), name)
    shown = [listing(recorded)] if recorded else []
    if count > recorded.total():
        shown.append(f"{count - recorded.total():,} of earlier runs{kinds}")
    return "; ".join(shown) or "none"


def run_row(verdicts: Counter[str], forced: bool, seed: str, commit: str, date: str) -> str:
    """One run as a row of the table of runs: `forced` says that no trace ran on the host."""
    comparable = sum(verdicts[kind] for kind in ORDER) - verdicts["incomparable"]
    passed = verdicts["passed"]
    others = ", ".join(
        f"{verdicts[kind]:,} {kind}" for kind in ("refused", "failed", "timed out", "crashed") if verdicts[kind]
    )
    cells = [FORCED if forced else ON_HOST, seed, commit, date, f"{verdicts.total():,}"]
    cells += [f"{verdicts['skipped']:,}", f"{comparable:,}", f"{passed:,}", percent(passed, comparable)]
    return f"| {' | '.join([*cells, percent(passed, comparable - verdicts['refused']), others or 'all passed'])} |"


def with_run(page: str, row: str) -> str:
    """The page with this row in its table of runs, in place of an earlier one of the same kind."""
    before, _, remaining = page.partition(RUNS_BEGIN)
    runs, _, after = remaining.partition(RUNS_END)
    kind = row.split(" | ")[0]
    kept = [line for line in runs.splitlines() if line.startswith(("| small", "| programs")) and kind not in line]
    head = [RUNS_HEAD, "|" + "---|" * (RUNS_HEAD.count("|") - 1)]
    lines = [RUNS_BEGIN, RUNS_TEXT, *head, *sorted([*kept, row], reverse=True), RUNS_END]
    following = [after.strip()] if after.strip() else []
    return "\n\n".join([before.rstrip(), "\n".join(lines), *following]) + "\n"


def listing(counts: Counter[str], most: int = 12) -> str:
    shown = [f"{count:,} {name}" for name, count in counts.most_common(most)]
    remaining = sum(counts.values()) - sum(count for _, count in counts.most_common(most))
    return "; ".join([*shown, f"{remaining:,} others"] if remaining else shown)


def percent(part: int, whole: int) -> str:
    """Rounded down: 100 % is all."""
    return f"{int(1000 * part / whole) / 10:g} %" if whole else "none"


def write(
    rows: list[dict[str, Any]], seed: int, page: Path, note: str = "", *, forced: bool = False, commit: str = ""
) -> None:
    """Merge results into the record beside the page, and put the section made from it between the two marks of the
    page, and the run into the table of runs. A run with `forced` programs only gets its row there."""
    entries: Entries = record.entries(rows, seed, commit, note)
    written = page.read_text()
    if not forced:
        entries = record.merge(page.parent, entries)
        before, _, remaining = written.partition(BEGIN)
        after = remaining.partition(END)[2]
        written = f"{before.rstrip()}\n\n{BEGIN}\n{text(entries)}\n{END}\n{after.lstrip()}"
    fields = [joined(entries, name) for name in ("seed", "commit", "date")]
    page.write_text(with_run(written, run_row(record.total(entries.values(), "verdicts"), forced, *fields)))
