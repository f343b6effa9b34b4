"""The tool that runs PyTorch's device-generic tests, on a test file of this project."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tools.upstream import __main__ as tool
from tools.upstream import record, table, verdicts

FILE = """
import os
import torch
from torch.testing._internal.common_device_type import (
    instantiate_device_type_tests, onlyCPU, onlyCUDA, onlyCUDAAndPRIVATEUSE1
)
from torch.testing._internal.common_utils import TestCase, skipOfAnotherVersion

class TestSample(TestCase):
    def setUp(self):
        super(self.__class__, self).setUp()

    def test_a_pass(self, device):
        self.assertEqual(torch.ones(2, device=device).sum(), 2)

    def test_b_failure(self, device):
        self.assertEqual(torch.ones((), device=device).device.type, "cpu")

    def test_c_crash(self, device):
        if device != "cpu":
            os._exit(3)

    def test_c_crash_of_both(self, device):
        os._exit(3)

    def test_d_refusal(self, device):
        torch.zeros(2, device=device, dtype=torch.complex32)

    def test_e_late_error(self, device):
        with self.assertRaises(IndexError):
            torch.ones(2, device=device)[torch.tensor([5], device=device)]

    @onlyCPU
    def test_f_of_the_cpu(self, device):
        pass

    @onlyCUDA
    @skipOfAnotherVersion
    def test_g_opened(self, device):
        torch.ones(2, device=device)

    def test_h_aged(self, device):
        torch.a_function_that_went_away()

    def test_i_of_cuda(self, device):
        if device != "cpu":
            with self.assertRaises(RuntimeError):
                torch.ones(2, device=device)

    def test_j_message_of_cuda(self, device):
        with self.assertRaisesRegex(RuntimeError, "must match" if device == "cpu" else "of CUDA"):
            torch.ones(2, device=device) + torch.ones(3, device=device)

    @onlyCUDAAndPRIVATEUSE1
    def test_k_opened(self, device):
        torch.ones(2, device=device)

instantiate_device_type_tests(TestSample, globals(), only_for="cuda")
"""
VERDICTS = ["passed", "failed", "incomparable", "crashed", "refused", "refused", "skipped", "passed"]
VERDICTS += ["incomparable", "incomparable", "incomparable", "passed"]


@pytest.mark.long
def test_verdicts_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_sample.py").write_text(FILE)
    results = tmp_path / "results.jsonl"
    command = ["upstream", str(tmp_path), "--files", "test_sample", "--results", str(results), "--processes", "1"]
    monkeypatch.setattr(sys, "argv", command)
    for _ in range(2):  # the second run reads all outcomes from the results
        assert tool.main() == 0
        rows = [row for row in table.read(results) if row["stage"] != "listed"]
        assert [verdicts.verdict(row) for row in sorted(rows, key=lambda row: row["number"])] == VERDICTS
        assert len(results.read_text().splitlines()) == len(VERDICTS) + 1


def test_table_replaces_its_section_of_a_page(tmp_path: Path) -> None:
    done = {"file": "a.py", "seed": 0, "stage": "done", "reason": "", "control": "passed"}
    rows = [
        {"file": "a.py", "seed": 0, "stage": "listed", "number": -1, "tests": 3},
        {**done, "number": 0, "status": "passed"},
        {**done, "number": 1, "status": "failed", "reason": "TypeError: map_ is only implemented on CPU tensors\n..."},
        {**done, "number": 2, "status": "failed", "reason": "NotImplementedError: dtype torch.complex32\n..."},
    ]
    page = tmp_path / "conformance.md"
    page.write_text("before\n")
    for _ in range(2):
        table.write(rows, 0, page, "Limit: 20 s.")
    text = page.read_text()
    assert text.startswith("before\n") and text.count("## PyTorch's own tests") == 1
    assert "**1 of 2 comparable tests pass (50 %); without the\n1 refusals 100 %.** Limit: 20 s.\n" in text
    assert "Refusals: 1 complex32." in text


def test_expectations_of_other_devices_are_incomparable() -> None:
    row = {"stage": "done", "status": "failed", "control": "passed"}
    row["test"] = "TestTorch.test_grad_scaler_deprecated_warning_tpu"
    reason = "AssertionError: `torch.tpu.amp.GradScaler` does not match `torch.cpu.amp.GradScaler`\n..."
    assert verdicts.verdict({**row, "reason": reason}) == "incomparable"
    assert verdicts.verdict({**row, "reason": "RuntimeError: wrong\n..."}) == "failed"


def test_run_replaces_its_files_in_the_record(tmp_path: Path) -> None:
    done = {"seed": 3, "stage": "done", "reason": "", "control": "passed", "status": "passed"}
    page = tmp_path / "conformance.md"
    page.write_text("before\n")
    refused = {"status": "failed", "reason": "TypeError: complex32\n..."}
    copied = {"status": "failed", "reason": "AssertionError: ...", "test": "TestTorch.test_lazy_clone_tpu"}
    listed = {"seed": 3, "stage": "listed", "number": -1, "tests": 4}
    runs = [
        ("a.py", [{}, {}, refused], "old"),
        ("b.py", [{}, copied], "old"),
        ("a.py", [{}, {}, {}, {"status": "skipped", "reason": "slow"}], "new"),
    ]
    for file, outcomes, commit in runs:
        rows = [{"file": file, **listed}]
        rows += [{"file": file, "number": n, **done, **outcome} for n, outcome in enumerate(outcomes)]
        table.write(rows, 3, page, commit=commit)
    entries, text = record.read(tmp_path), page.read_text()
    assert [(file, entry["commit"]) for file, entry in entries.items()] == [("a", "new"), ("b", "old")]
    assert "| a | 4 | 3 | 1 | 3 | 0 | 0 | 0 | 0 | 0 |\n| b | 4 | 2 | 0 | 1 | 0 | 1 | 0 | 0 | 0 |\n" in text
    assert "| all | 8 | 5 | 1 | 4 | 0 | 1 | 0 | 0 | 0 |" in text and "**4 of 5 comparable tests" in text
    assert "| 3 | new, old | " in text and "Refusals: none." in text and "Failures: 1 copy-on-write storages" in text


def test_results_keep_the_commit_and_day_on_which_they_ran(tmp_path: Path) -> None:
    done = {"seed": 3, "stage": "done", "reason": "", "control": "passed", "status": "passed"}
    old, new = record.origin("old") | {"date": "2026-01-02"}, record.origin("new")
    rows = [{"file": file, "seed": 3, "stage": "listed", "number": -1, "tests": 4} for file in ("a.py", "b.py")]
    rows += [{"file": "a.py", "number": 0, **done, **old}, {"file": "b.py", "number": 0, **done, **old}]
    rows += [{"file": "b.py", "number": 1, **done, **new}]
    entries = record.entries(rows, 3, "new")
    assert (entries["a"]["commit"], entries["a"]["date"]) == ("old", "2026-01-02")
    assert (entries["b"]["commit"], entries["b"]["date"]) == ("old, new", f"2026-01-02, {new['date']}")
    assert table.joined(entries, "commit") == "new, old"


def test_line_of_a_killed_run_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.jsonl"
    rows = [{"file": "a.py", "seed": 0, "stage": "listed", "number": -1, "tests": 0}]
    rows += [{"file": "b.py", "seed": 0, "stage": "done", "number": 0, "status": "skipped", "reason": ""}]
    results.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"file": "a.p')
    (tmp_path / "a.py").touch()
    monkeypatch.setattr(sys, "argv", ["upstream", str(tmp_path), "--files", "a", "--results", str(results)])
    assert tool.main() == 0
    assert table.read(results) == rows  # of b.py, no list is left
    assert results.read_text().endswith('{"file": "a.p\n')
    assert "line 3, is damaged" in capsys.readouterr().err


def test_failure_caused_by_a_refusal_counts_as_refused() -> None:
    row = {"stage": "done", "status": "failed", "control": "passed", "test": "TestTypes.test_types_tpu"}
    assert verdicts.verdict({**row, "reason": "AssertionError: none raised <- TypeError: complex32\n..."}) == "refused"


def test_runs_with_forced_programs_have_a_row_beside_the_section(tmp_path: Path) -> None:
    done = {"file": "a.py", "stage": "done", "reason": "", "control": "passed", "status": "passed"}
    page = tmp_path / "conformance.md"
    page.write_text("before\n\nafter\n")
    for seed, forced, commit in ((3, False, "1234abcd"), (11, True, "old"), (12, True, "5678abcd")):
        rows = [{"file": "a.py", "seed": seed, "stage": "listed", "number": -1, "tests": 2}]
        rows += [{**done, "seed": seed, "number": 0}, {**done, "seed": seed, "number": 1, "status": "failed"}]
        table.write(rows, seed, page, forced=forced, commit=commit)
    text = page.read_text()
    assert text.startswith("before\n\nafter\n") and text.count("## PyTorch's own tests") == text.count("### Runs") == 1
    runs = [line for line in text.splitlines() if line.startswith(("| small", "| programs"))]
    assert [[cell.strip() for cell in line.split("|")][2:4] for line in runs] == [["3", "1234abcd"], ["12", "5678abcd"]]
    assert all("| 2 | 0 | 2 | 1 | 50 % | 50 % | 1 failed |" in line for line in runs)
