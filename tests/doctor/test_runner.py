"""The process that each check runs in, and the report of its outcome."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest

from lazytpu.doctor.__main__ import environment
from lazytpu.doctor.advice import advice
from lazytpu.doctor.check import DoctorCheck, load
from lazytpu.doctor.checks import machine
from lazytpu.doctor.outcome import BROKEN, CRASHED, HUNG, LEFT_OUT, WORKS, CheckOutcome
from lazytpu.doctor.report import NO_DEVICE, Report
from lazytpu.doctor.runner import CLIENT, CheckRunner


class Scripted:
    """A process with scripted answers, by default that everything works."""

    def __init__(self, log: list[str], answers: dict[str, list[str]]) -> None:
        log.append("start")
        self.alive = True
        self.log = log
        self.answers = answers

    def ask(self, key: str, limit: float) -> dict[str, Any]:
        self.log.append(key)
        statuses = self.answers.get(key, [])
        status = statuses.pop(0) if statuses else WORKS
        self.alive = status not in (CRASHED, HUNG)
        return {"status": status, "detail": f"{key} {limit:.0f}", "seconds": 0.0, "said": ""}

    def leave(self) -> None:
        self.log.append("leave")
        self.alive = False


def run(*checks: DoctorCheck, **answers: list[str]) -> tuple[list[str], list[CheckOutcome], CheckRunner]:
    log: list[str] = []
    scripted = {key.replace("__", "."): list(statuses) for key, statuses in answers.items()}
    by_key = {check.key: check for check in (*checks, of(CLIENT))}
    runner = CheckRunner(by_key, lambda: Scripted(log, scripted), patience=2)  # pyright: ignore[reportArgumentType]
    return log, list(runner.run(checks)), runner


def of(key: str, **rest: Any) -> DoctorCheck:
    family, _, name = key.partition(".")
    return DoctorCheck(family, name, "", 30, lambda: "", **rest)


def test_checks_share_a_process_with_the_client_first() -> None:
    log, outcomes, runner = run(of("machine.host", device=False), of(CLIENT), of("a.x"), of("a.y"))
    assert log == ["start", "machine.host", CLIENT, "a.x", "a.y", "leave"]
    assert [outcome.status for outcome in outcomes] == [WORKS] * 4 and runner.device
    assert outcomes[2].detail == "a.x 60"  # with twice the patience


def test_new_process_after_a_crash_and_for_a_fresh_check() -> None:
    log, *_ = run(of("a.x"), of("a.y"), of("b.z", fresh=True), a__x=[CRASHED])
    assert log == ["start", CLIENT, "a.x", "start", CLIENT, "a.y", "leave", "start", CLIENT, "b.z", "leave"]


def test_device_lost_after_a_crash_is_reported() -> None:
    _, outcomes, runner = run(of(CLIENT), of("a.x"), of("a.y"), of("a.z"), machine__client=[WORKS, HUNG], a__x=[HUNG])
    assert [outcome.status for outcome in outcomes] == [WORKS, HUNG, LEFT_OUT, LEFT_OUT]
    assert "a new process got no client: machine.client 60" in outcomes[2].detail
    assert not runner.device


def test_checks_of_the_device_are_skipped_without_a_client() -> None:
    log, outcomes, runner = run(of(CLIENT), of("a.x"), of("a.y", device=False), machine__client=[BROKEN])
    assert log == ["start", CLIENT, "a.y", "leave"]
    assert [outcome.status for outcome in outcomes] == [BROKEN, LEFT_OUT, WORKS] and not runner.device


def test_family_that_keeps_crashing_is_skipped() -> None:
    checks = [of(f"a.{i}") for i in range(5)]
    _, outcomes, runner = run(*checks, of("b.x"), **{f"a__{i}": [CRASHED] for i in range(5)})
    assert [outcome.status for outcome in outcomes] == [CRASHED] * 3 + [LEFT_OUT] * 2 + [WORKS] and runner.device


def test_skipped_checks_share_one_line() -> None:
    out = io.StringIO()
    report = Report(out)
    for name in "xyz":
        report.add(CheckOutcome("a", name, "", LEFT_OUT, "no client"))
    report.add(CheckOutcome("b", "x", "", LEFT_OUT, "no client"))
    assert report.end(device=False, seconds=1) == NO_DEVICE
    lines = [line.split() for line in out.getvalue().splitlines() if "no client" in line]
    assert [line[:4] for line in lines] == [["not", "run", "3", "checks"], ["not", "run", "x", "0.0"]]


def test_advice_is_given_once_per_problem() -> None:
    text = "Failed to open x.so"
    wrong = [CheckOutcome("a", name, "", BROKEN, text) for name in "xy"]
    assert len(advice(wrong)) == 1 and "PJRT_NAMES_AND_LIBRARY_PATHS" in advice(wrong)[0]
    assert advice([CheckOutcome("a", "x", "", WORKS, text)]) == []
    (waiting,) = advice([CheckOutcome("machine", "client", "", HUNG, "killed after 90 s")])
    assert "TPU_SKIP_MDS_QUERY=1" in waiting


def test_user_settings_are_not_inherited() -> None:
    user_variables = {"LAZYTPU_MODE": "strict", "LAZYTPU_PLATFORM": "tpu", "HOME": "/root"}
    variables = environment(user_variables, None, "folder")
    assert variables == {
        "HOME": "/root",
        "LAZYTPU_PLATFORM": "tpu",
        "LAZYTPU_CACHE_DIR": "folder/cache",
        "LAZYTPU_BACKGROUND_COMPILE": "0",
    }
    assert environment(user_variables, "cpu", "folder")["LAZYTPU_PLATFORM"] == "cpu"


@pytest.mark.parametrize(
    ("version", "bounds", "within"),
    [
        ("2.13.0+cpu", "<2.14,>=2.13", True),
        ("2.14.1", "<2.14,>=2.13", False),
        ("0.10.2", "==0.10.2", True),
        ("0.10.3", "==0.10.2", False),
        ("2", ">=2.0", True),
        (None, ">=2", False),
    ],
)
def test_version_bounds(version: str | None, bounds: str, within: bool) -> None:
    assert machine._within(version, bounds) == within


def test_reporting_process_does_not_import_jax() -> None:
    code = "import sys, lazytpu.doctor.__main__ as m; m.load(); print('jax' in sys.modules, 'jaxlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def test_every_check_states_its_proof() -> None:
    assert all(check.proves.endswith(".") and check.limit > 0 for check in load().values())
