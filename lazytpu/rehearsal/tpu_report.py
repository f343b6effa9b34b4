"""`lazytpu.tpu_report`: what a step would cost on a TPU, from a rehearsal of it."""

from __future__ import annotations

import functools
from typing import Any

from lazytpu.engine.recompiles.wording import program_name
from lazytpu.engine.translate import translate
from lazytpu.inspect.graphs import Graph
from lazytpu.inspect.tpu.compiling import report_stablehlo, report_text
from lazytpu.inspect.tpu.report import ProgramReport, TpuReport
from lazytpu.lowering.text import stablehlo_text
from lazytpu.options import options
from lazytpu.passes.target import Target
from lazytpu.rehearsal.rehearse import Part, rehearse
from lazytpu.runtime.tpu_compiler import Topology


def report(work: Any, topology: str, *args: Any, **kwargs: Any) -> TpuReport:
    """The report of a step (a function, called with the arguments) or of a program of `lazytpu.graphs()`."""
    Topology.parse(topology)  # before the work begins
    if isinstance(work, Graph):
        return report_text(work.text(), topology, name=work.name)
    if not callable(work):
        raise TypeError(f"lazytpu.tpu_report takes a function, or a program of lazytpu.graphs(), not {work!r}")
    parts = rehearse(functools.partial(work, *args, **kwargs))
    if not parts:
        raise ValueError(f"{getattr(work, '__name__', work)} leaves nothing on the device that a program would compute")
    return TpuReport(topology, tuple(_of_part(part, topology) for part in parts))


def _of_part(part: Part, topology: str) -> ProgramReport:
    records = part.records
    name, target = program_name(records), Target.parse(topology)
    made = translate(
        records,
        part.live,
        part.dead,
        part.names,
        name=name,
        bounds_check=options.bounds_check,
        target=target,
        platform="tpu",
        memory_limit=options.memory_limit,
    )
    return report_stablehlo(stablehlo_text(made.module, locations=True), topology, name=name)
