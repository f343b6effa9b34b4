"""`lazytpu.tpu_report`: the estimated cost of a step on a TPU, from a rehearsal."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lazytpu.distributed import imagined
from lazytpu.engine.compiling.translate import Translated, translate
from lazytpu.engine.recompiles.wording import program_name
from lazytpu.inspection.graphs import ProgramGraph
from lazytpu.inspection.stages import stages
from lazytpu.inspection.tpu.compiling import report_stablehlo, report_text
from lazytpu.inspection.tpu.program import ProgramReport
from lazytpu.inspection.tpu.report import TpuReport
from lazytpu.lowering.text import stablehlo_text
from lazytpu.options import options
from lazytpu.passes.target import Target
from lazytpu.rehearsal.rehearse import RehearsedProgram, rehearse
from lazytpu.runtime.tpu.topology import Topology

DEFAULT = "v6e:2x2"


def report(work: Any, topology: str | None, progress: bool | None, *args: Any, **kwargs: Any) -> TpuReport:
    """Return the report of a step, a function that is called with the arguments, or of a program of
    `lazytpu.graphs()`. Without a topology, it is for that of the imagined job, or for DEFAULT."""
    if topology is None:
        job = imagined.JOB
        topology = DEFAULT if job is None or job.topology is None else str(job.topology)
    topology = str(Topology.parse(topology))  # before the work begins
    with stages(progress) as tell:
        if isinstance(work, ProgramGraph):
            tell(f"compiling {work.name} for {topology}")
            return report_text(work.text(), topology, name=work.name)
        if not callable(work):
            raise TypeError(f"lazytpu.tpu_report takes a function, or a program of lazytpu.graphs(), not {work!r}")
        name, calls = getattr(work, "__name__", str(work)), itertools.count(1)

        seconds: list[float] = []

        def step() -> Any:
            tell(f"recording {name}, call {next(calls)}")
            start = time.process_time()  # the backward pass has a thread of its own
            try:
                return work(*args, **kwargs)
            finally:
                seconds.append(time.process_time() - start)

        programs = rehearse(step)
        if not programs:
            raise ValueError(f"{name} leaves nothing on the device that a program would compute")
        # The last calls find all ops in the trie, as the steps of a loop do.
        per_record = min(seconds) / sum(len(program.records) for program in programs)
        reports = [_report_of(i, programs, topology, tell, per_record) for i in range(len(programs))]
        return TpuReport(topology, tuple(reports))


def _report_of(
    index: int,
    programs: Sequence[RehearsedProgram],
    topology: str,
    tell: Callable[[str], None],
    seconds_per_record: float,
) -> ProgramReport:
    program = programs[index]
    name = program_name(program.records)
    about = f"program {index + 1} of {len(programs)} ({name}, {len(program.records):,} ops)"
    tell(f"{about}: passes")
    step = translated(program, Target.parse(topology))
    tell(f"{about}: compiling for {topology}")
    report = report_stablehlo(stablehlo_text(step.module, locations=True), topology, name=name, passes=step.passes)
    records = len(program.records)
    return replace(report, records=records, host_seconds=seconds_per_record * records)


def translated(program: RehearsedProgram, target: Target) -> Translated:
    """Translate a rehearsed program for a TPU generation."""
    return translate(
        program.records,
        program.live,
        program.dead,
        program.names,
        name=program_name(program.records),
        bounds_check=options.bounds_check,
        target=target,
        platform="tpu",
        memory_limit=options.memory_limit,
    )
