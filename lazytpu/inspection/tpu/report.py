"""The report of a step: a report for each of its programs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

from lazytpu.inspection.tpu import export
from lazytpu.inspection.tpu.advice import Advice, advise
from lazytpu.inspection.tpu.program import ProgramReport

SCHEMA = 2
"Version of `as_dict`; docs/tpu-report.md describes it."


@dataclass(frozen=True)
class TpuReport:
    """The cost of a step on a TPU: a report for each of its programs, in order."""

    topology: str
    programs: tuple[ProgramReport, ...]

    @property
    def seconds(self) -> float:
        """Seconds of one step, without the host's part."""
        return sum(program.seconds for program in self.programs)

    @property
    def complete(self) -> bool:
        """Whether `seconds` covers the whole step."""
        return all(program.complete for program in self.programs)

    @property
    def advice(self) -> list[Advice]:
        """The advice for all programs, largest gain first."""
        return sorted(chain(*map(advise, self.programs)), key=lambda entry: -(entry.seconds or 0.0))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON; docs/tpu-report.md describes the fields."""
        programs = [export.program(program) for program in self.programs]
        total = {"seconds": self.seconds, "complete": self.complete}
        return {"schema": SCHEMA, "topology": self.topology, **total, "programs": programs}

    def __str__(self) -> str:
        from lazytpu.inspection.tpu.render import as_text

        return as_text(self.programs)

    def __repr__(self) -> str:
        count = f"{len(self.programs)} program{'s' if len(self.programs) != 1 else ''}"
        least = "" if self.complete else "at least "
        return f"<TpuReport for {self.topology}: {least}{1e6 * self.seconds:,.0f} us estimated, {count}>"

    def __rich__(self) -> Any:
        from lazytpu.inspection.tpu.render import rendered

        return rendered(self.programs)
