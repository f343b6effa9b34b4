"""The report of one program: its figures, what to advise about them, and both as JSON."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from lazytpu.inspection.tpu import export, padding
from lazytpu.inspection.tpu.advice import Advice, advise
from lazytpu.inspection.tpu.agreement import agree
from lazytpu.inspection.tpu.figures import ProgramFigures
from lazytpu.inspection.tpu.hlo import read_hlo
from lazytpu.inspection.tpu.memory import memory_use
from lazytpu.inspection.tpu.module import read_module
from lazytpu.inspection.tpu.schedule import schedule
from lazytpu.passes.generations import GENERATIONS
from lazytpu.runtime.tpu_compiler import TpuProgram


class ProgramReport(ProgramFigures):
    """What one program costs on one device of a topology, and what would make it faster or smaller."""

    @cached_property
    def advice(self) -> list[Advice]:
        """What would be faster or smaller, largest gain first."""
        return advise(self)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON; docs/tpu-report.md describes the fields."""
        return export.program(self, self.advice)


def examine(compiled: TpuProgram, stablehlo: str | bytes, *, name: str) -> ProgramReport:
    """The report of a program from its StableHLO and the compiler's output. Raises InconsistentError if the two
    disagree."""
    hlo, facts = read_hlo(compiled.proto), GENERATIONS[compiled.topology.generation]
    module, planned = read_module(stablehlo), schedule(hlo, facts, compiled.devices)
    agree(hlo, module, planned, compiled.devices, name)
    return ProgramReport(
        name=name,
        program=compiled,
        hlo=hlo,
        module=module,
        schedule=planned,
        memory=memory_use(hlo, compiled.memory, compiled.buffers, facts.device_hbm_bytes),
        padded=padding.padded(hlo),
    )
