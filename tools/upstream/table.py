"""The table of results, and the refusals that docs/ announces."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import lazytpu

REFUSALS = {
    "complex32": r"complex32|ComplexHalf|chalf|c32\b",
    "quantised": r"QuantizedPrivateUse1|affine_quantized|quint8|qint8|qint32|quantize",
    "CSR": r"SparseCsrPrivateUse1|[Ss]parse_?(csr|csc|bsr|bsc|compressed)|to_sparse_csr",
    "strided nested": r"NestedTensorPrivateUse1|strided nested",
}
"""Patterns of the exception's first line: features that docs/dtypes.md and docs/sparse.md exclude."""
OF_THE_CPU = r"only implemented on CPU tensors|_ConvBackend\.Overrideable"
"""Failures that no device outside of torch can avoid: `map_` and similar ops call Python for each element on the CPU
alone, and torch's choice among its own convolution kernels is `Overrideable` for each such device."""
OF_OTHERS = {
    r"test_stable_sort_against_numpy.* at least two devices": 'an index on the CPU for any device but "cuda"',
    r"test_grad_scaling_state_dict.* False is not true": 'a `torch.FloatTensor` on any device but "cuda"',
    r"test_lazy_clone.* is not (true|false)": "when memory is copied, of which values on the device have none",
    r"test_parallel_cow.* not raised": "when memory is copied, of which values on the device have none",
    r"all\(a == b for a, b in zip\([pg]_cdatas_before": "a tensor's C++ object that stays when the device changes",
}
"""Patterns of a test's name, its exception and the traceback, and the features that such tests require and only the
CPU or CUDA have."""
BEGIN, END = "<!-- upstream -->", "<!-- end of upstream -->"
RUNS_BEGIN, RUNS_END = "<!-- runs of upstream -->", "<!-- end of runs of upstream -->"
ON_HOST, FORCED = "small traces on the host", "programs for all traces (`LAZYTPU_ON_HOST=0`)"
RUNS_TEXT = """### Runs

By default, small traces run on the host as beside a model. With `LAZYTPU_ON_HOST=0` each trace gets a program, so the
values are those of XLA's code, and a test that loops over elements in Python may reach its limit by compile time.
"""
RUNS_HEAD = "| run | seed | commit | date | tests | skipped | comparable | passed | all | without refusals | others |"


def read(results: Path) -> list[dict[str, Any]]:
    """Return the rows of a results file: the last one of each test."""
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return list({(row["file"], row["number"], row["seed"]): row for row in rows}.values())


def verdict(row: dict[str, Any]) -> str:
    """skipped, passed, refused, failed, timed out, crashed, or incomparable."""
    if row["stage"] == "tpu" and row.get("control") == "passed":
        return "timed out" if row["end"] == "hangs" else "crashed"
    if row["stage"] == "tpu":
        return "incomparable"
    if row["status"] == "skipped":
        return "skipped"
    if row.get("control") != "passed" or row.get("of_device_names") or re.search(OF_THE_CPU, row["reason"]):
        return "incomparable"
    if row["status"] == "failed" and of_others(row):
        return "incomparable"
    if row["status"] == "passed":
        return "passed"
    return "refused" if kind_of_refusal(row) else "failed"


def of_others(row: dict[str, Any]) -> str | None:
    """Return the feature that a test requires and only the CPU and CUDA have; None for most tests."""
    if row.get("of_device_names"):
        return 'behaviour of CUDA on any device that is not named "cpu"'
    said = f"{row.get('test', '')} {row['reason']}"
    return next((expected for pattern, expected in OF_OTHERS.items() if re.search(pattern, said)), None)


def kind_of_refusal(row: dict[str, Any]) -> str | None:
    """Which announced refusal a failure is. An error is late if the test passes in debug mode."""
    if row.get("late"):
        return "errors that values decide, raised at the read"
    said = row["reason"].partition("\n")[0]
    return next((kind for kind, pattern in REFUSALS.items() if re.search(pattern, said)), None)


ORDER = ("passed", "refused", "failed", "timed out", "crashed", "incomparable")


def text(rows: list[dict[str, Any]], seed: int, note: str = "") -> str:
    """The section of docs/conformance.md, as Markdown."""
    rows = [row for row in rows if row["seed"] == seed]
    listed = {row["file"]: row["tests"] for row in rows if row["stage"] == "listed"}
    counts: dict[str, Counter[str]] = {file: Counter() for file in listed}
    skips, refusals, required = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        if row["stage"] == "listed":
            continue
        outcome = verdict(row)
        counts[row["file"]][outcome] += 1
        if outcome == "skipped":
            skips[reason_of_skip(row["reason"])] += 1
        if outcome == "incomparable" and row.get("status") == "failed" and (expected := of_others(row)):
            required[expected] += 1
        if outcome == "refused":
            refusals[kind_of_refusal(row) or ""] += 1
    total = sum(counts.values(), Counter[str]())
    ran = sum(total[kind] for kind in ORDER)
    comparable = ran - total["incomparable"]
    passed, refused = total["passed"], total["refused"]
    lines = [
        "## PyTorch's own tests\n",
        "`make upstream FOLDER=...` runs PyTorch's device-generic test files, many tests in one process, each",
        "followed by its control: the same test on the CPU device. A test is comparable if its control passes,",
        "it does not ask for a kernel of torch's CPU by name, and the control does not fail in the same way once",
        'the CPU device has another name than "cpu". Small traces run as they do beside a model: short or varying ones',
        "[on the host](background-compilation.md#small-traces-that-run-on-the-host).\n",
        f"torch {torch.__version__}, lazytpu {lazytpu.__version__}, seed {seed}, {datetime.now(UTC):%Y-%m-%d}:",
        f"**{passed:,} of {comparable:,} comparable tests pass ({percent(passed, comparable)}); without the",
        f"{refused:,} refusals {percent(passed, comparable - refused)}.** {note}".rstrip() + "\n",
        "| file | tests | run | skipped | " + " | ".join(ORDER) + " |",
        "|" + "---|" * (4 + len(ORDER)),
    ]
    for file, of in {**counts, "all": total}.items():
        cells = [listed.get(file, sum(listed.values())), sum(of[kind] for kind in ORDER), of["skipped"]]
        cells += [of[kind] for kind in ORDER]
        lines.append(f"| {file.removesuffix('.py')} | " + " | ".join(f"{n:,}" for n in cells) + " |")
    lines += ["", "Refusals: " + (listing(refusals) or "none") + ".", ""]
    lines += ["Incomparable, since they expect: " + (listing(required) or "nothing of the kind") + ".", ""]
    return "\n".join([*lines, "Skipped by the tests themselves: " + (listing(skips) or "none") + "."])


def run_row(rows: list[dict[str, Any]], seed: int, forced: bool, commit: str) -> str:
    """One run as a row of the table of runs: `forced` says that no trace ran on the host."""
    of = Counter(verdict(row) for row in rows if row["seed"] == seed and row["stage"] != "listed")
    comparable = sum(of[kind] for kind in ORDER) - of["incomparable"]
    passed = of["passed"]
    others = ", ".join(f"{of[kind]:,} {kind}" for kind in ("refused", "failed", "timed out", "crashed") if of[kind])
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    cells = [FORCED if forced else ON_HOST, str(seed), commit or "unknown", date, f"{sum(of.values()):,}"]
    cells += [f"{of['skipped']:,}", f"{comparable:,}", f"{passed:,}", percent(passed, comparable)]
    return f"| {' | '.join([*cells, percent(passed, comparable - of['refused']), others or 'all passed'])} |"


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


def reason_of_skip(reason: str) -> str:
    """The reason without the parts that differ from test to test."""
    reason = " ".join(reason.split())
    return re.sub(r"Only runs on .*", lambda found: found.group().replace("'", ""), reason)[:60]


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
    """Put the section into the page, between its two marks, and the run into the table of runs. A run with `forced`
    programs only gets its row there."""
    written = page.read_text()
    if not forced:
        before, _, remaining = written.partition(BEGIN)
        after = remaining.partition(END)[2]
        written = f"{before.rstrip()}\n\n{BEGIN}\n{text(rows, seed, note)}\n{END}\n{after.lstrip()}"
    page.write_text(with_run(written, run_row(rows, seed, forced, commit)))
