"""Compile a module for its report: the lazytpu dialect through the TPU's pipeline, StableHLO unchanged."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.utils.exceptions import ParseError

from lazytpu.inspection.stages import stages
from lazytpu.inspection.tpu.program import ProgramReport, examine
from lazytpu.inspection.tpu.report import TpuReport
from lazytpu.ir.text import parse_module
from lazytpu.lowering.emit import emit
from lazytpu.lowering.text import stablehlo_text
from lazytpu.passes.pipeline import PassRecord, run_pipeline
from lazytpu.passes.target import Target
from lazytpu.runtime.errors import CompileError
from lazytpu.runtime.tpu.topology import Topology, smallest
from lazytpu.runtime.tpu.tpu_compiler import compile_for_tpu, installed

Options = Mapping[str, bool | int | str]


def report_stablehlo(
    text: str, topology: str, *, name: str, options: Options | None = None, passes: Sequence[PassRecord] = ()
) -> ProgramReport:
    """Return the report of a StableHLO module with source lines, for the number of devices that it states.

    `passes` are the records of the pipeline that produced it. Raises the errors of
    `lazytpu.runtime.tpu.tpu_compiler.compile_for_tpu`.
    """
    report = examine(compile_for_tpu(text, topology, options=options, name=name), text, name=name)
    return replace(report, notes=tuple(note for record in passes for note in record.notes))


def ask(text: str, generation: str, *, name: str, passes: str | None = None) -> TpuReport | None:
    """Return the report of a module as `report_text` does; None if the TPU's compiler is not installed.

    Raises ValueError if the compiler rejects the module.
    """
    if not installed():
        return None
    topology = smallest(generation)
    why = "to use its times: this takes minutes for a large step, once; --model gives estimates at once"
    print(f"libtpu compiles {name} for {topology}, {why}", file=sys.stderr)
    try:
        with stages() as tell:
            tell(f"compiling {name} for {topology}")
            return report_text(text, topology, name=name, passes=passes)
    except (CompileError, ParseError) as error:
        raise ValueError(f"{error}; --model asks no compiler") from error


def report_text(
    text: str, topology: str, *, name: str, options: Options | None = None, passes: str | None = None
) -> TpuReport:
    """Return the report of a dumped module, in the lazytpu dialect or StableHLO.

    The dialect first goes through `passes`, by default the pipeline of the topology's generation; a dump went through
    the pipeline of the machine that wrote it.

    Raises ValueError and ParseError if the text is not a module, and the errors of `report_stablehlo`.
    """
    topology = str(Topology.parse(topology))  # check it before the work begins
    history: Sequence[PassRecord] = ()
    if "lazytpu." in re.sub(r"lazytpu\.(name|alias|donate|successor|compile_options)\b", "", text):
        module = parse_module(text, name)
        history = run_pipeline(module, passes=Target.parse(topology) if passes is None else passes, verify=False)
        text = stablehlo_text(emit(module, name=name, platform="tpu"), locations=True)
    return TpuReport(topology, (report_stablehlo(text, topology, name=name, options=options, passes=history),))
