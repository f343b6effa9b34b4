"""The report of a step: a report for each of its programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lazytpu.inspection.tpu.advice import Advice
from lazytpu.inspection.tpu.program import ProgramReport

SCHEMA = 2
"Of `as_dict`; docs/tpu-report.md describes it."


@dataclass(frozen=True)
class TpuReport:
    """What a step costs on a TPU: a report for each of its programs, in their order."""

    topology: str
    programs: tuple[ProgramReport, ...]

    @property
    def seconds(self) -> float:
        """One step, without the host's part."""
        return sum(each.seconds for each in self.programs)

    @property
    def complete(self) -> bool:
        """Whether `seconds` has all of a step in it."""
        return all(each.complete for each in self.programs)

    @property
    def advice(self) -> list[Advice]:
        """Of all programs, the largest gain first."""
        return sorted((each for program in self.programs for each in program.advice), key=lambda a: -(a.seconds or 0.0))

    def as_dict(self) -> dict[str, Any]:
        """JSON: docs/tpu-report.md says what each field is."""
        programs = [program.as_dict() for program in self.programs]
        whole = {"seconds": self.seconds, "complete": self.complete}
        return {"schema": SCHEMA, "topology": self.topology, **whole, "programs": programs}

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
