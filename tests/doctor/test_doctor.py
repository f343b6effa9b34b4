"""`python -m lazytpu.doctor` as a user runs it: a report each time, and the right exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest

from lazytpu.doctor.__main__ import main
from lazytpu.doctor.check import load
from lazytpu.doctor.process import Process
from lazytpu.doctor.report import ALL_WORKS, EXITS, NO_DEVICE, SOMETHING_BROKEN, WRONG_COMMAND

pytestmark = pytest.mark.xdist_group("doctor")  # in parallel, children would wait for the cores


def doctor(*arguments: str, **environment: str) -> tuple[int, str]:
    """Return the exit status and the report."""
    command = [sys.executable, "-m", "lazytpu.doctor", *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=400, check=False
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.returncode, done.stdout + done.stderr


def checks(path: Path) -> dict[str, dict[str, Any]]:
    """Return the checks in a JSON file by name."""
    return {f"{check['family']}.{check['name']}": check for check in json.loads(path.read_text())["checks"]}


@pytest.mark.long
def test_cpu_report(tmp_path: Path) -> None:
    """Run the family that tests processes; test_checks.py runs the checks of the others."""
    path = tmp_path / "report.json"
    status, report = doctor("cache", "--platform", "cpu", "--json", str(path), "--patience", "5")
    wrong = [check for check in checks(path).values() if check["status"] != "works"]
    assert (status, wrong) == (ALL_WORKS, []), report
    assert {check["family"] for check in checks(path).values()} == {"machine", "cache"}
    assert f"exit status 0: {EXITS[ALL_WORKS]}" in report
    assert checks(path)["cache.loaded again"]["detail"] == "1 programs loaded, none compiled"


@pytest.mark.long
def test_any_outcome_of_a_check_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    also = ("--also", "tests.doctor.injected", "--json", str(path))
    status, report = doctor("injected", *also, "--platform", "cpu", PYTHONPATH=os.pathsep.join([os.getcwd(), *_path()]))
    assert status == SOMETHING_BROKEN
    injected = {name.partition(".")[2]: check for name, check in checks(path).items() if name.startswith("injected.")}
    statuses = {name: check["status"] for name, check in injected.items()}
    assert statuses == {
        "works": "works",
        "refuses": "missing",
        "raises": "broken",
        "leaves": "broken",
        "aborts": "crashed",
        "hangs": "hung",
    }
    assert injected["works"]["said"] == "said on the way\n"
    assert injected["refuses"]["detail"] == "no such thing here"
    assert injected["raises"]["detail"] == "ValueError: 1 is not 2" and "injected.py" in injected["raises"]["said"]
    assert injected["leaves"]["detail"] == "SystemExit: leaving"
    assert "SIGABRT; F0000" in injected["aborts"]["detail"] and "buffer != nullptr" in injected["aborts"]["detail"]
    assert "killed after 3 s" in injected["hangs"]["detail"] and "at hangs (injected.py:" in injected["hangs"]["detail"]
    assert _ended(int(injected["hangs"]["said"].split()[1]))
    assert "crashed  aborts" in report and "hung     hangs" in report


def test_output_belongs_to_the_check_that_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the check has ended before its parent reads."""
    process = Process(os.environ, ["tests.doctor.injected"])
    stdin = process._child.stdin
    assert stdin is not None
    flush = stdin.flush
    try:
        with monkeypatch.context() as patch:
            slow = SimpleNamespace(write=stdin.write, flush=lambda: (flush(), sleep(0.2)))
            patch.setattr(process._child, "stdin", slow)
            answers = [process.ask(f"injected.{name}", 30) for name in ("works", "refuses", "works")]
    finally:
        process.leave()
    assert [answer["said"] for answer in answers] == ["said on the way\n", "", "said on the way\n"]


def _ended(process: int) -> bool:
    """Whether a process has ended. In a container, nobody may have waited for it yet: then it is a zombie."""
    status = Path(f"/proc/{process}/status")
    return not status.exists() or "State:\tZ" in status.read_text()


def _path() -> list[str]:
    return [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []


def test_missing_plugin_is_reported() -> None:
    status, report = doctor(PJRT_NAMES_AND_LIBRARY_PATHS="plug:/nowhere/plugin.so", JAX_PLATFORMS="plug")
    assert status == NO_DEVICE
    assert "JAX_PLATFORMS asks for plug" in report and "Failed to open /nowhere/plugin.so" in report
    assert "What to do: the path of a plugin" in report
    assert f"not run  {sum(check.family == 'transfers' for check in load().values())} checks" in report


def test_libtpu_without_a_chip_is_reported() -> None:
    if any(Path("/dev").glob("accel*")) or any(Path("/dev").glob("vfio/[0-9]*")):
        pytest.skip("this machine has a TPU")
    status, report = doctor("machine", "--platform", "tpu", TPU_SKIP_MDS_QUERY="1")
    assert status == NO_DEVICE
    assert "no TPU chip on the PCI bus" in report and "LAZYTPU_PLATFORM asks for tpu" in report
    assert "What to do: libtpu finds no chip" in report


@pytest.mark.parametrize("arguments", [["kidneys"], ["--platform", "abacus"], ["--also", "no.such.module"], ["--nope"]])
def test_wrong_command_line_exits_with_its_status(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == WRONG_COMMAND
    assert arguments[-1] in capsys.readouterr().err


def test_help_explains_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--help"])
    assert exit_info.value.code == 0
    printed = capsys.readouterr().out
    assert all(f"  {number}  {meaning}" in printed for number, meaning in EXITS.items())


def test_list_names_all_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "--list"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert {line.partition(".")[0] for line in printed} == {"machine", "kernels"}
