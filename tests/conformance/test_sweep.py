"""The sweep survives the death of a worker and of itself; the table follows from the results, and every gap names an
owner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import fake_worker

ROOT = Path(__file__).resolve().parents[2]


def row(op: str, dtype: str = "float32", k: int = 3, passed: int = 3, **more: Any) -> dict[str, Any]:
    failures = [{"check": "forward", "sample": 0, "call": "", "error": "Mismatch", "message": "off by one"}]
    return {
        "op": op, "dtype": dtype, "k": k, "seed": 0, "samples": 3, "checks": {"forward": [passed, 3]},
        "failures": failures if passed < 3 else [], "reason": "", "random": False, **more,
    }  # fmt: skip


def test_death_of_a_worker_fails_only_its_op(tmp_path: Path):
    from tools.conformance import rows, sweep

    results = tmp_path / "results.jsonl"
    jobs = [(op, "float32", 3, 0) for op in ("add", "dies", "mul", "hangs", "sub")]
    assert sweep.sweep(jobs, results, processes=2, limit=5.0, quiet=True, work=fake_worker.work) == 2
    answers = {op: answer for (op, *_), answer in rows.finished(results).items()}
    assert {op for op, answer in answers.items() if not answer["failures"]} == {"add", "mul", "sub"}
    assert answers["dies"]["failures"][0]["message"] == "the worker process died with exit code 3"
    assert answers["hangs"]["failures"][0]["message"] == "took more than 5 s"


def test_late_poll_accepts_an_answer_in_time():
    from collections import deque

    from tools.conformance import sweep

    worker = sweep.Worker(5.0, fake_worker.work)
    assert worker.pipe.poll(60)
    worker.deadline = 0.0
    jobs = deque([("add", "float32", 3, 0)])
    assert sweep._collect([worker], jobs) == [] and not jobs
    assert worker.pipe.poll(60)
    worker.deadline = 0.0
    assert [row["op"] for row in sweep._collect([worker], jobs)] == ["add"]


def test_restarted_sweep_continues(tmp_path: Path):
    from tools.conformance import rows, sweep

    results = tmp_path / "results.jsonl"
    results.write_text(json.dumps(row("add")) + '\n{"op": "mul", "dty')  # killed while it wrote
    jobs = [("add", "float32", 3, 0), ("mul", "float32", 3, 0)]
    assert sweep.sweep(jobs, results, processes=2, limit=5.0, quiet=True, work=fake_worker.work) == 0
    assert len(results.read_text().splitlines()) == 3
    assert [op for op, *_ in rows.finished(results)] == ["add", "mul"]


def test_samples_are_evenly_spread():
    from tools.conformance.entries import spread

    assert spread("abcde", 3) == [(0, "a"), (2, "c"), (4, "e")]
    assert spread("abc", 0) == spread("abc", 5) == [(0, "a"), (1, "b"), (2, "c")]


def test_every_op_has_a_unique_name():
    from tools.conformance.entries import entries
    from tools.conformance.rows import DTYPES

    assert len(list(entries(("float32",)))) > 650
    assert {str(e).split()[1] for e in entries(only="^add$")} == set(DTYPES)


def test_document_lists_failures_with_their_reasons():
    from tools.conformance.gaps import Gap
    from tools.conformance.page import page
    from tools.conformance.report import document, stale

    gap, unused = Gap("sub|mul", "xla", "It has no minus."), Gap("add", "torch", "It is wrong.")
    none = row("div", samples=0, checks={}, reason="the CPU refuses it")
    rows = {(r["op"], r["dtype"]): r for r in (row("add"), row("sub", passed=2), row("neg", passed=0), none)}
    contents = document(rows, (gap, unused), {})
    summary = contents["summary"]["float32"]
    assert (summary["ops"], summary["pass"], summary["fail"], summary["not_compared"]) == (4, 1, 2, 1)
    assert summary["checks"] == {"forward": [1, 3]}
    assert [(m["op"], m["whose"], m["reason"]) for m in contents["missing"]] == [
        ("neg", "", ""),
        ("sub", "xla", "It has no minus."),
    ]
    assert stale(rows, (gap, unused)) == [unused]
    text = page(contents)
    assert "| float32 | 3 | 1 | **33.3 %** | 9 | 1 / 3 |" in text
    assert "| `sub` | float32 | forward | xla | It has no minus. |" in text
    assert "| `neg` | float32 | forward |  | Not yet explained: Mismatch: off by one |" in text
    assert "| `div` | float32 | the CPU refuses it |" in text


def test_page_follows_from_the_document():
    from tools.conformance.page import page
    from tools.conformance.report import dumps

    text = (ROOT / "docs/conformance.json").read_text()
    assert dumps(json.loads(text)) == text
    # `make upstream` writes the second part
    written, _, _ = (ROOT / "docs/conformance.md").read_text().partition("\n<!-- upstream -->")
    assert written == page(json.loads(text)), "run make coverage"


def test_gaps_name_existing_ops():
    import re

    from tools.conformance.entries import table
    from tools.conformance.gaps import Gap, load

    for gap in load():
        assert any(re.fullmatch(gap.ops, op) for op in table()), f"no op is called {gap.ops}"
    with pytest.raises(ValueError, match="whose is 'mine'; allowed: torch, xla, lazytpu"):
        Gap("add", "mine", "")
