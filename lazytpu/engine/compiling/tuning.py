"""`torch.compile(mode="max-autotune")`: choice of the TPU passes that make a program faster, by the cost report.

The TPU's compiler compiles a program with all passes, and without each pass that changes it. The chip's model times
these (`lazytpu.inspection.tpu`), and the fastest pipeline is taken. No TPU is needed, and no other combination is
tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.arg_spec import parse_pipeline

from lazytpu.inspection import debug
from lazytpu.inspection.tpu.compiling import report_stablehlo
from lazytpu.lowering.emit import emit
from lazytpu.lowering.text import stablehlo_text
from lazytpu.passes.pipeline import run_pipeline, without
from lazytpu.passes.registry import passes as known_passes
from lazytpu.runtime.errors import CompileError
from lazytpu.runtime.tpu.topology import smallest


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pipeline: its description, its text, and the StableHLO that it gives for a program."""

    what: str
    passes: str
    stablehlo: str


def fastest(module: ModuleOp, passes: str, generation: str, name: str) -> str:
    """Return `passes`, or `passes` without one of them, whichever gives the fastest program on a TPU of this
    generation.

    The module is not changed. This takes as long as libtpu does for each candidate.
    """
    choices = candidates(module, passes, name)
    if len(choices) == 1:
        return passes
    times = [(seconds(choice, generation, name), choice) for choice in choices]
    debug.tuned(name, [(choice.what, time) for time, choice in times])
    return min(times, key=lambda entry: entry[0])[1].passes


def candidates(module: ModuleOp, passes: str, name: str) -> list[Candidate]:
    """Return the full pipeline, and the pipeline without each TPU pass whose absence changes the program."""
    optional = [spec.name for spec in parse_pipeline(passes) if "tpu" in known_passes()[spec.name].targets]
    pipelines = [("all passes", passes), *((f"without {left_out}", without(passes, left_out)) for left_out in optional)]
    choices: list[Candidate] = []
    for what, text in pipelines:
        clone = module.clone()
        run_pipeline(clone, passes=text, verify=False)
        stablehlo = stablehlo_text(emit(clone, name=name, platform="tpu"))
        if all(stablehlo != choice.stablehlo for choice in choices):
            choices.append(Candidate(what, text, stablehlo))
    return choices


def seconds(choice: Candidate, generation: str, name: str) -> float:
    """Return the run time of a candidate by the cost report; infinite if the compiler refuses it, or the time is
    unknown."""
    try:
        report = report_stablehlo(choice.stablehlo, smallest(generation), name=f"{name}, {choice.what}")
    except CompileError:
        return float("inf")
    return report.seconds if report.complete else float("inf")
