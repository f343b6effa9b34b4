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
from tools.conformance.large import infos
from tools.conformance.rows import LARGE, finished
from tools.conformance.sweep import jobs_of

COMPLEX32 = r"torch\.complex32 is not supported"
NOT_FINITE = r"at \d+ \(?-?(nan|inf)\S*, on the CPU \(?-?(nan|inf)"
SIGNS = r"at \d+ (\S*0\.0|\S*0j\)?), on the CPU (\S*0\.0|\S*0j\)?)[,;]"
"""A zero, or a complex number with one. Other differences must be within the rule (`_signs_alone`)."""
ORDER = (
    "(?i)fft.*|.*sum.*|.*mean.*|.*norm.*|.*matmul.*|matrix_exp|.*mm|.*mv|ormqr|.*grid_sample.*|.*dot|.*conv.*|einsum|inner|outer|.*linear|cum.*|where|renorm|prod|.*embedding_bag"
)
OPEN = (
    (
        "sort|argsort|msort|topk|kthvalue|mode|median|nanmedian|quantile|nanquantile",
        "",
        "torch: which of equal elements comes first is not defined without stable=True; the CPU's order is its "
        "algorithm's, ours the stable one.",
    ),
    (
        "maximum|minimum|fmax|fmin|max.binary|min.binary",
        SIGNS,
        "torch: which of two zeros is larger is not defined: the CPU's vectorised loop gives the second, its plain "
        "loop the first, as here.",
    ),
    (
        "long|int|short|byte|char|to|bool|type_as",
        "expected to be equal",
        "torch: a float outside the range of the integer dtype is undefined; x86 gives the least integer, XLA the "
        "nearest.",
    ),
    (
        "atan",
        SIGNS,
        "torch: on the real axis the CPU's complex64 kernel drops the sign of a zero, its complex128 kernel keeps it.",
    ),
    (
        "nn.(GRU|LSTM|RNN).*",
        SIGNS,
        "torch: products with one term keep the sign of a zero or start from 0.0, depending on the dtype's library.",
    ),
    (
        "linalg.(inv|solve|tensorsolve|tensorinv).*",
        "singular",
        "torch: a matrix with equal rows is singular; rounding decides whether a pivot is exactly 0.",
    ),
    (
        "(fft|stft|istft).*",
        r"on the CPU \(?-?(nan|inf)",
        "torch: how far NaN and infinities spread depends on the factors of the length that a library picks.",
    ),
    (
        "(?i).*conv.*",
        r"at \d+ nan, on the CPU|at \d+ -?[\d.e+-]+, on the CPU nan",
        "torch: whether weights multiply the zeros of padding depends on the dtype's library, which counts if they are "
        "infinite.",
    ),
    (
        "cumprod",
        r"at \d+ \(?-?(nan|inf)",
        "torch: where partial products overflow depends on their order, which its CPU and CUDA kernels choose.",
    ),
    (
        "(fft|stft|istft).*",
        SIGNS,
        "torch: the sign of an imaginary part that is zero depends on the factors of the length that a library picks.",
    ),
    (
        "cholesky|linalg.cholesky.*|cholesky_inverse|linalg.lstsq.*",
        SIGNS,
        "torch: LAPACK gives zeros, as of an imaginary part on the diagonal, the sign that its block's loop leaves.",
    ),
    (
        "(?i)nn.(functional.)?(elu|celu|selu|hardswish|hardshrink|softshrink)",
        r"^gradient.* at \d+ (nan|0\.0), on the CPU|at \d+ 0\.0, on the CPU -0\.0",
        "torch: the CPU's vectorised loop and its plain loop, for the elements past the last whole vector, differ for "
        "NaN and zeros; here as in the vectorised loop.",
    ),
    (ORDER, NOT_FINITE, "torch: where partial sums overflow depends on the order of the sum."),
    (".*", COMPLEX32, "XLA has no complex numbers of half precision."),
    (".*", "sparse_csr", "lazytpu: compressed sparse tensors have no kernels."),
)
"""Differences that are left open: ops and messages (regular expressions), and why."""
INTRO = """# Conformance at sizes of work

`make conformance SIZES=large` enlarges samples of torch's op database and of its layers, plants special values in them,
lays them out in other ways, and runs them on the CPU and on the device: fused, strict, and by programs for many sizes.
Seeds: {seeds}. Date: {date}. Versions: {versions}.

Results that the CPU computes exactly must have the CPU's bits. For others, an element's error against float64 may be
2 ulp plus twice the CPU's largest among results of about its magnitude
([`tools/conformance/precision.py`](../tools/conformance/precision.py)). The reference of float64 has a mantissa of 64
bits where numpy has the op as a ufunc; elsewhere the CPU's error in float32, in ulp, stands for its error in float64,
or the change of its result when the last bits of its inputs change. Results without a reference, such as floats of
integers, are compared with the tolerances of [the ordinary sweep](conformance.md).

XLA's CPU client takes subnormal numbers for zero
(https://github.com/jax-ml/jax/issues/16200, https://github.com/openxla/xla/issues/22858), so the CPU is set to do so,
too. The sweep takes its entries in an order drawn by the seed: an unfinished one is a sample of all. A reason is given
only where torch leaves the result open or the op is refused; a sum or factorization beyond the rule counts as failed.

{totals}

A count is "passed / run".
"""


def known_reason(row: dict[str, Any], failure: dict[str, Any]) -> str:
    """Return the reason for which a failure is accepted, "" if there is none."""
    gap = reason(load(), row["op"], row["dtype"], failure["check"].split()[0])
    if gap:
        return f"{gap.whose}: {gap.reason}"
    message = failure["message"]
    matches = (why for ops, said, why in OPEN if re.fullmatch(ops, row["op"]) and re.search(said, message)
               and (said is not SIGNS or _signs_alone(message)))  # fmt: skip
    return next(matches, "")


def _signs_alone(message: str) -> bool:
    """Whether a difference is one of zeros' signs: its largest error is allowed, or, where the message has none, its
    first two numbers are equal."""
    errors = re.search(r"([\d.e+]+) ulp at \d+, allowed ([\d.e+]+)", message)
    if errors:
        return float(errors[1]) <= float(errors[2])
    numbers = re.search(SIGNS, message)
    return numbers is not None and complex(numbers[1]) == complex(numbers[2])


def totals(rows: list[dict[str, Any]]) -> str:
    """Return the number of ops and samples that ran, and the outcomes of their results."""
    failed = [row for row in rows if row["failures"]]
    unknown = [row for row in failed if not all(known_reason(row, f) for f in row["failures"])]
    planned = len(jobs_of(LARGE, "", {"": 1}, 0, infos())) * len({(row["k"], row["seed"]) for row in rows})
    keys = ("samples", "equal", "within", "unjudged")
    samples, equal, within, unjudged = (sum(row.get(key, 0) for row in rows) for key in keys)
    return (
        f"{len({row['op'] for row in rows}):,} ops and layers at {len({row['dtype'] for row in rows})} dtypes, "
        f"{len(rows):,} of {planned:,} entries, {samples:,} samples. Results with the CPU's bits: {equal:,}; "
        f"others within the rule: {within:,}; others near the CPU's, with no reference: {unjudged:,}. "
        f"Entries with a difference: {len(failed):,}, of which "
        f"{len(failed) - len(unknown):,} are left open for a reason below, and {len(unknown):,} failed."
    )


def write(results: Path, page: Path) -> None:
    """Write the page of all results of a file."""
    rows = list(finished(results).values())
    page.write_text(text(rows, datetime.now(UTC).strftime("%Y-%m-%d")))


def text(rows: list[dict[str, Any]], date: str) -> str:
    """Return the page as Markdown: counts by dtype and check, then each difference with its known reason, if any."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("lazytpu", "torch", "jax"))
    seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))
    checks = sorted({check for row in rows for check in row["checks"]})
    lines = [INTRO.format(seeds=seeds, date=date, versions=versions, totals=totals(rows))]
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
    lines += ["", "| op | dtype | checks | seed | difference | reason |", "|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (row["op"], row["dtype"], row["seed"])):
        for checks_of, f in _by_kind(row["failures"]).values():
            cells = (f"`{row['op']}`", row["dtype"], ", ".join(checks_of), row["seed"])
            cells += (cell(f["message"]), cell(known_reason(row, f)))
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _by_kind(failures: list[dict[str, Any]]) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Group failures by stage (forward, backward, ...), with the checks and the first failure of each."""
    kinds: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for f in failures:
        checks, _ = kinds.setdefault(f["check"].split()[0], ([], f))
        if f["check"] not in checks:
            checks.append(f["check"])
    return kinds
