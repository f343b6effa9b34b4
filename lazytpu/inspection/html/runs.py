"""All programs of a dumped run with the reasons for them, and the comparison of two runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from lazytpu.inspection.about import About
from lazytpu.inspection.diff import diff
from lazytpu.inspection.dumps import IMPORTED, modules, written_with
from lazytpu.inspection.step.costs import CostedStep, costed


def about_of(file: Path) -> About:
    """Return the origin of a dumped program; unknown fields are empty."""
    return About.parse(written_with(file, "about") or "")


@dataclass(frozen=True)
class RunProgram:
    """A program of a dumped run: its file before the passes, and its cost."""

    file: Path
    step: CostedStep

    @property
    def name(self) -> str:
        """The name of its dump, such as 007-train_step."""
        return self.file.name.removesuffix(IMPORTED)

    @property
    def time(self) -> str:
        """Microseconds of a run."""
        return f"{1e6 * self.step.cost['seconds']:,.1f}"

    @cached_property
    def reason(self) -> str:
        """Why it was compiled; empty if the dump does not say so."""
        return written_with(self.file, "why") or ""


@dataclass(frozen=True)
class Pair:
    """A program of a run and its counterpart in another run: the program of the same name that was compiled as the
    same number of that name. Either may be missing."""

    first: RunProgram | None
    second: RunProgram | None

    @property
    def change(self) -> str:
        """The differences of the second program from the first one."""
        if self.first is None or self.second is None:
            return "only in the second run" if self.first is None else "only in the first run"
        lines = sum(line.sign != " " for line in diff(self.first.file.read_text(), self.second.file.read_text()))
        before, after = self.first.step.cost["seconds"], self.second.step.cost["seconds"]
        return f"{lines:,} lines differ, {after / before - 1:+.0%} of time" if lines and before else "the same"


def programs(folder: Path, generation: str, *, by_model: bool = False) -> list[RunProgram]:
    """Return the programs of a dump in the order of their compilation. Raises ValueError if there are none."""
    return [
        RunProgram(file, costed(file.read_text(), file.name.removesuffix(IMPORTED), generation, by_model=by_model))
        for file in modules([folder])
        if file.name.endswith(IMPORTED)
    ]


def paired(first: Sequence[RunProgram], second: Sequence[RunProgram]) -> list[Pair]:
    """Return the programs of two runs side by side, in the order of the first run."""
    by_name = [_numbered(first), _numbered(second)]
    return [Pair(by_name[0].get(key), by_name[1].get(key)) for key in dict.fromkeys(chain(*by_name))]


def _numbered(of_run: Sequence[RunProgram]) -> dict[tuple[str, int], RunProgram]:
    seen: Counter[str] = Counter()
    numbered: dict[tuple[str, int], RunProgram] = {}
    for program in of_run:
        name = program.name.partition("-")[2]
        numbered[name, seen[name]] = program
        seen[name] += 1
    return numbered
