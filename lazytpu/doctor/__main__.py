"""The command line: `python -m lazytpu.doctor --help`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import NoReturn

from lazytpu import readers
from lazytpu.doctor.check import EXTRA, FAMILIES, DoctorCheck, load
from lazytpu.doctor.process import Process
from lazytpu.doctor.report import EXITS, WRONG_COMMAND, Report
from lazytpu.doctor.runner import CheckRunner
from lazytpu.settings import SETTINGS

ABOUT = """What works on this machine: one report to paste, in about two minutes.

Checks run in a child process, which is restarted when a check kills it. One that hangs is killed at its time limit."""


OWN, PLATFORM = "LAZYTPU_", "LAZYTPU_PLATFORM"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(WRONG_COMMAND, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run checks, write the report, and return the exit status."""
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        readers.platform(args.platform)
    except ValueError:
        parser.error(f"--platform {args.platform}: allowed are {SETTINGS['platform'].allowed}")
    try:
        checks = load(args.also)
    except ImportError as error:
        parser.error(f"--also {' '.join(args.also)}: {error}")
    chosen = _chosen(checks, args.families, parser)
    if args.list:
        for check in chosen:
            print(f"{check.key:36} {check.limit:4.0f} s  {check.proves}")
        return 0
    report, start = Report(sys.stdout), monotonic()
    report.begin(args.platform, [name for name in os.environ if name.startswith(OWN) and name != PLATFORM])
    with tempfile.TemporaryDirectory(prefix="lazytpu-doctor-") as folder:
        variables = environment(os.environ, args.platform, folder)
        runner = CheckRunner(checks, lambda: Process(variables, args.also), args.patience)
        try:
            for outcome in runner.run(chosen):
                report.add(outcome)
        except KeyboardInterrupt:
            runner.stop()
            print("interrupted: the report is incomplete")
    status = report.end(runner.device, monotonic() - start)
    if args.json is not None:
        try:
            report.write(args.json, runner.device)
        except OSError as error:
            parser.error(f"--json: {error}")
    return status


def environment(variables: Mapping[str, str], platform: str | None, folder: str) -> dict[str, str]:
    """The environment of the processes that run checks: `variables` without lazytpu's settings, except the platform.
    Programs are cached in `folder` and compiled in the foreground."""
    inherited = {name: value for name, value in variables.items() if not name.startswith(OWN)}
    chosen = platform or variables.get(PLATFORM, "")
    overrides = {"LAZYTPU_CACHE_DIR": str(Path(folder, "cache")), "LAZYTPU_BACKGROUND_COMPILE": "0"}
    return {**inherited, **overrides, **({PLATFORM: chosen} if chosen else {})}


def _chosen(
    checks: Mapping[str, DoctorCheck], families: Sequence[str], parser: argparse.ArgumentParser
) -> list[DoctorCheck]:
    """Return the checks of the named families, by default of all but the extra ones; the checks of the machine are
    always included."""
    families_with_checks = list(dict.fromkeys(check.family for check in checks.values()))
    for family in families:
        if family not in families_with_checks:
            parser.error(f"there is no family {family!r}; there are {', '.join(families_with_checks)}")
    named = set(families) | {FAMILIES[0]} if families else set(families_with_checks) - set(EXTRA)
    return [check for check in checks.values() if check.family in named]


def _parser() -> argparse.ArgumentParser:
    statuses = "\n".join(f"  {status}  {meaning}" for status, meaning in EXITS.items())
    parser = _Parser(
        "python -m lazytpu.doctor",
        description=ABOUT,
        epilog=f"families: {', '.join(FAMILIES)}; when named: {', '.join(EXTRA)}\n\nexit status:\n{statuses}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="run only these, after the machine's own")
    parser.add_argument("--platform", help="as LAZYTPU_PLATFORM: cpu, tpu, gpu, a plugin's name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all results to a file")
    parser.add_argument("--patience", type=float, default=1.0, metavar="N", help="multiply all time limits by N (1)")
    parser.add_argument("--also", action="append", default=[], metavar="MODULE", help="a module with more checks")
    parser.add_argument("--list", action="store_true", help="list the checks without running them")
    return parser


if __name__ == "__main__":
    sys.exit(main())
