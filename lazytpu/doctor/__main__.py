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
from lazytpu.doctor.check import EXTRA, FAMILIES, Check, load
from lazytpu.doctor.process import Process
from lazytpu.doctor.report import EXITS, WRONG_COMMAND, Report
from lazytpu.doctor.runner import Runner
from lazytpu.settings import SETTINGS

ABOUT = """What works on this machine: one report to paste, in about two minutes.

Each check runs in a child process, which is started anew when a check ends it. One that hangs is ended at its limit."""


OWN, PLATFORM = "LAZYTPU_", "LAZYTPU_PLATFORM"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(WRONG_COMMAND, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run checks, write the report, and return the exit status."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        readers.platform(asked.platform)
    except ValueError:
        parser.error(f"--platform {asked.platform}: allowed are {SETTINGS['platform'].allowed}")
    try:
        checks = load(asked.also)
    except ImportError as error:
        parser.error(f"--also {' '.join(asked.also)}: {error}")
    wanted = _chosen(checks, asked.families, parser)
    if asked.list:
        for check in wanted:
            print(f"{check.key:36} {check.limit:4.0f} s  {check.proves}")
        return 0
    report, start = Report(sys.stdout), monotonic()
    report.begin(asked.platform, [name for name in os.environ if name.startswith(OWN) and name != PLATFORM])
    with tempfile.TemporaryDirectory(prefix="lazytpu-doctor-") as folder:
        variables = environment(os.environ, asked.platform, folder)
        runner = Runner(checks, lambda: Process(variables, asked.also), asked.patience)
        try:
            for outcome in runner.run(wanted):
                report.add(outcome)
        except KeyboardInterrupt:
            runner.stop()
            print("interrupted: the report has what was known by then")
    status = report.end(runner.device, monotonic() - start)
    if asked.json is not None:
        try:
            report.write(asked.json, runner.device)
        except OSError as error:
            parser.error(f"--json: {error}")
    return status


def environment(given: Mapping[str, str], platform: str | None, folder: str) -> dict[str, str]:
    """The variables of the processes that run checks: the given ones without lazytpu's settings, but for the platform.
    Programs are kept in `folder`, and waited for."""
    kept = {name: value for name, value in given.items() if not name.startswith(OWN)}
    wanted = platform or given.get(PLATFORM, "")
    own = {"LAZYTPU_CACHE_DIR": str(Path(folder, "cache")), "LAZYTPU_BACKGROUND_COMPILE": "0"}
    return {**kept, **own, **({PLATFORM: wanted} if wanted else {})}


def _chosen(checks: Mapping[str, Check], families: Sequence[str], parser: argparse.ArgumentParser) -> list[Check]:
    """The checks of the families that were named, all but the extra ones when none are; those of the machine always."""
    known = list(dict.fromkeys(check.family for check in checks.values()))
    for family in families:
        if family not in known:
            parser.error(f"there is no family {family!r}; there are {', '.join(known)}")
    named = set(families) | {FAMILIES[0]} if families else set(known) - set(EXTRA)
    return [check for check in checks.values() if check.family in named]


def _parser() -> argparse.ArgumentParser:
    statuses = "\n".join(f"  {status}  {meaning}" for status, meaning in EXITS.items())
    parser = _Parser(
        "python -m lazytpu.doctor",
        description=ABOUT,
        epilog=f"families: {', '.join(FAMILIES)}; when named: {', '.join(EXTRA)}\n\nexit status:\n{statuses}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="run these alone, after the machine's own")
    parser.add_argument("--platform", help="what LAZYTPU_PLATFORM takes: cpu, tpu, gpu, a plugin's name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was found out to a file, too")
    parser.add_argument("--patience", type=float, default=1.0, metavar="N", help="multiply all limits (1)")
    parser.add_argument("--also", action="append", default=[], metavar="MODULE", help="a module with further checks")
    parser.add_argument("--list", action="store_true", help="say what would be checked, and check nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
