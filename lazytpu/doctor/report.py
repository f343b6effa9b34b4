"""The report: readable lines as checks end, and all results as JSON."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from textwrap import wrap
from typing import TextIO

from lazytpu.doctor.advice import advice
from lazytpu.doctor.outcome import BAD, BROKEN, CRASHED, HUNG, LEFT_OUT, MISSING, WORKS, CheckOutcome
from lazytpu.version import VERSION

WIDTH = 120
LONGEST = 700
"""The most characters of a detail in the report; the JSON file has all of it."""
_NAME, _STATUS = 28, 8
_COLOURS = {WORKS: 32, MISSING: 33, LEFT_OUT: 33, BROKEN: 31, CRASHED: 31, HUNG: 31}

ALL_WORKS, SOMETHING_BROKEN, NO_DEVICE, WRONG_COMMAND = 0, 1, 2, 3
EXITS = {
    ALL_WORKS: "everything works, or is refused with a reason (missing)",
    SOMETHING_BROKEN: "something is broken, crashed or hung",
    NO_DEVICE: "no device could be used: the report says what was tried and what to do",
    WRONG_COMMAND: "the command line is wrong",
}


class Report:
    """Writes outcomes to `out` as they come, in colour if that is a terminal."""

    def __init__(self, out: TextIO) -> None:
        self.outcomes: list[CheckOutcome] = []
        self.when = datetime.now().astimezone().isoformat(timespec="seconds")
        self._out = out
        self._colours = out.isatty()
        self._family = ""
        self._left_out: list[CheckOutcome] = []  # not yet printed

    def begin(self, platform_wanted: str | None, aside: Sequence[str]) -> None:
        """Print the header; `aside` are the environment variables that checks do not inherit."""
        request = f", asked for {platform_wanted}" if platform_wanted else ""
        self._line(f"lazytpu {VERSION} doctor, {self.when}, {platform.machine()}{request}")
        if aside:
            self._line(f"run without {', '.join(sorted(aside))}")

    def add(self, outcome: CheckOutcome) -> None:
        """Print an outcome, in several lines if its detail is long. Checks that did not run share one line."""
        self.outcomes.append(outcome)
        if self._left_out and (outcome.family, outcome.detail) != (self._left_out[0].family, self._left_out[0].detail):
            self._flush_left_out()
        if outcome.status == LEFT_OUT:
            self._left_out.append(outcome)
        else:
            self._flush_left_out()
            self._write_outcome(outcome, outcome.name)

    def _flush_left_out(self) -> None:
        if self._left_out:
            first, *remaining = self._left_out
            self._write_outcome(first, f"{1 + len(remaining)} checks" if remaining else first.name)
            self._left_out = []

    def _write_outcome(self, outcome: CheckOutcome, name: str) -> None:
        if outcome.family != self._family:
            self._family = outcome.family
            self._line(f"\n{outcome.family}")
        status = f"{outcome.status:{_STATUS}}"
        if self._colours:
            status = f"\x1b[{_COLOURS[outcome.status]}m{status}\x1b[0m"
        start = f"  {status} {name:{_NAME}} {outcome.seconds:6.1f} s  "
        column = _STATUS + _NAME + 14
        lines = wrap(_cut(outcome.detail), WIDTH - column, break_long_words=False, break_on_hyphens=False) or [""]
        self._line(f"\n{'':{column}}".join([start + lines[0], *lines[1:]]))

    def end(self, device: bool, seconds: float) -> int:
        """Print the footer and return the exit status."""
        self._flush_left_out()
        counts = Counter(outcome.status for outcome in self.outcomes)
        summary = ", ".join(f"{counts[status]} {status}" for status in _COLOURS if counts[status])
        self._line(f"\n{summary}, in {seconds:.0f} s")
        for text in advice(self.outcomes):
            form = {"subsequent_indent": "  ", "break_long_words": False, "break_on_hyphens": False}
            self._line("\n".join(wrap(f"What to do: {text}", WIDTH, **form)))
        status = self.status(device)
        self._line(f"exit status {status}: {EXITS[status]}")
        return status

    def status(self, device: bool) -> int:
        """The exit status; `device` says whether a device could be used."""
        if not device:
            return NO_DEVICE
        return SOMETHING_BROKEN if any(outcome.status in BAD for outcome in self.outcomes) else ALL_WORKS

    def write(self, path: Path, device: bool) -> None:
        """Write everything as JSON. Raises OSError."""
        path.write_text(as_json(self.outcomes, self.when, self.status(device)))

    def _line(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def as_json(outcomes: Sequence[CheckOutcome], when: str, status: int) -> str:
    """The JSON text: `lazytpu` (the version), `when`, `exit`, and `checks`, the fields of each `CheckOutcome`."""
    checks = [{name: getattr(outcome, name) for name in CheckOutcome.__slots__} for outcome in outcomes]
    return json.dumps({"lazytpu": VERSION, "when": when, "exit": status, "checks": checks}, indent=1) + "\n"


def _cut(detail: str) -> str:
    return detail if len(detail) <= LONGEST else f"{detail[:LONGEST]} ..."
