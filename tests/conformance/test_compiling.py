"""Programs of entries compiled for an absent TPU, and their column of the table."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lazytpu.runtime.tpu.tpu_compiler import ALONE
from tools.conformance import column, compiling, rows, sweep
from tools.conformance.entries import entries
from tools.conformance.samples import call_of

# Entries that the TPU's compiler lacks, or that once ended its process, with today's outcomes.
SMALL = {
    ("add", "bfloat16"): "compiles",
    ("frexp", "float64"): "compiles",
    ("mm", "int64"): "compiles",
    ("cdouble", "float32"): "refused",
    ("linalg.eigvals", "float32"): "refused",
}
LARGE = {
    ("svd", "float32"): "compiles",
    ("softmax.with_dtype", "float32"): "compiles",
    ("linalg.lu_factor", "float64"): "compiles",
    ("linalg.eigh", "complex64"): "compiles",  # its gradient reads whether the result is unique
    ("fft.rfft", "float64"): "refused",
}


@pytest.mark.parametrize("of_entries", [SMALL, pytest.param(LARGE, marks=pytest.mark.long)], ids=["small", "large"])
def test_entry_compiles_or_is_refused_at_the_call(
    of_entries: dict[tuple[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    jobs = [(op, dtype, 1, 0) for op, dtype in of_entries]
    results = tmp_path / "v6e.jsonl"
    sweep.sweep(jobs, results, 1, 240, True, partial(compiling.work, chip="v6e"))
    outcomes = {(row["op"], row["dtype"]): column.outcome(row) for row in rows.finished(results).values()}
    assert outcomes == of_entries


def test_smallest_distinct_samples_are_compiled():
    (entry,) = entries(("float32",), "^linalg.svd$")
    calls = [call_of(sample) for _, sample in compiling.smallest_of(entry, 4)]
    assert len({compiling.structure(call) for call in calls}) == len(calls) == 4
    sizes = [call[0].numel() for call in calls]
    assert sizes == sorted(sizes) and sizes[0] > 0


def row(op: str, dtype: str = "float32", **checks: tuple[list[int], str]) -> dict[str, Any]:
    failures = [{"check": c, "error": error, "message": f"{op} is not"} for c, (_, error) in checks.items() if error]
    counts = {check: count for check, (count, _) in checks.items()}
    return {"op": op, "dtype": dtype, "k": 3, "seed": 0, "checks": counts, "failures": failures}


def test_document_has_the_results_of_every_chip(tmp_path: Path):
    results = [
        row("add", v6e=([2, 2], "")),
        row("eig", call=([0, 1], "NotImplementedError")),
        row("svd", process=([0, 1], "RuntimeError")),
        row("lu", v6e=([1, 2], "CompileError")),
    ]
    (tmp_path / "v6e.jsonl").write_text("\n".join(map(json.dumps, results)))
    names = ("add", "eig", "svd", "lu", "mul")
    old: dict[str, Any] = {
        "ops": {name: {"float32": {"compiled": {"v5e": "compiles"}}} for name in names},
        "compiled": {"v5e": {"summary": {}, "reasons": {}}},
    }
    document: dict[str, Any] = {"ops": {name: {"float32": {}} for name in names}}
    column.add(document, tmp_path, old)
    outcomes = {name: document["ops"][name]["float32"]["compiled"].get("v6e") for name in names}
    assert outcomes == {"add": "compiles", "eig": "refused", "svd": "aborts", "lu": "fails", "mul": None}
    assert {document["ops"][name]["float32"]["compiled"]["v5e"] for name in names} == {"compiles"}
    assert document["compiled"]["v6e"]["summary"] == {
        "float32": {"at_most": 3, "compiles": 1, "programs": 5, "refused": 1, "aborts": 1, "fails": 1}
    }
    text = "\n".join(column.section(document["compiled"], "0.0.42"))
    assert "| v6e | float32 | 3 | 5 | 1 | 1 | 1 | 1 |" in text
    assert "| v6e | refused | `eig` float32 | eig is not |" in text
    assert column.mark(document["ops"]["lu"], "v6e") == "fails float32"
