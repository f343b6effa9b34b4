"""From a step to figures of the TPU compiler, with each pass and without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ModuleOp

import lazytpu
from lazytpu.aten.importer import import_trace
from lazytpu.engine.compiling.tuning import without
from lazytpu.inspection.tpu.compiling import report_stablehlo
from lazytpu.ir.module import options_of
from lazytpu.ir.text import parse_module, print_module
from lazytpu.lowering.emit import emit
from lazytpu.lowering.text import stablehlo_text
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.passes.registry import for_target, passes
from lazytpu.passes.target import Target
from lazytpu.rehearsal.rehearse import RehearsedProgram, rehearse
from lazytpu.runtime.tpu.tpu_compiler import Topology
from lazytpu.trace.extract import extract
from lazytpu.trace.trie import CutPlan
from tools.judge.cases import Case


@dataclass(frozen=True)
class Figures:
    """One way to compile a step: `microseconds` by the schedule's model, `ops` scheduled, `temporary` bytes, `exposed`
    microseconds in which the core waits for other chips, and the seconds the compiler took. It is not `complete` when
    the time of some of its ops is unknown, which `microseconds` leaves out."""

    way: str
    microseconds: float
    ops: int
    temporary: int
    exposed: float
    compile_seconds: float
    complete: bool = True

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def judge(name: str, case: Case, topology: str) -> Iterator[Figures]:
    """Yield the figures of a case: with the whole pipeline, without each pass that changes it, without Pallas kernels,
    and op by op."""
    rehearsed = parts(case, Topology.parse(topology).chips)
    texts = [_imported(program) for program in rehearsed]
    pipeline, target = for_target(Target.parse(topology)), Target.parse(topology)
    yield _figures(name, "as it is", texts, pipeline, topology)
    for optional_pass in optional(target):
        if any(changes(text, pipeline, optional_pass) for text in texts):
            yield _figures(name, f"without {optional_pass}", texts, without(pipeline, optional_pass), topology)
    if any("tpu_custom_call" in _stablehlo(_passed(text, pipeline)) for text in texts):
        yield _figures(name, "XLA's ops in place of kernels", texts, pipeline, topology, kernels=False)
    if case.per_op:
        yield per_op(name, rehearsed, topology)


def parts(case: Case, chips: int) -> list[RehearsedProgram]:
    """The programs that a case's step would run, once it has settled; nothing runs."""
    with lazytpu.imagined_job(ranks=chips) if case.distributed else nullcontext():
        return rehearse(case.make())


def programs(case: Case, chips: int = 4) -> list[str]:
    """They as they come to the passes."""
    return [_imported(program) for program in parts(case, chips)]


def optional(target: Target) -> list[str]:
    """Return the optional passes: all in a phase of this target's pipeline, except passes that only decompose ops
    without a kernel."""
    names = [e.name for e in passes().values() if e.phase is not None and target.among(e.targets)]
    return [name for name in names if not name.startswith("decompose-")]


def changes(text: str, pipeline: str, name: str) -> bool:
    """Whether the pass changes a module on its way through the pipeline."""
    before = ""
    for record in run_pipeline(parse_module(text), passes=pipeline, verify=False, keep="all"):
        if record.name == name and record.text != before:
            return True
        before = record.text
    return False


def _figures(name: str, way: str, texts: list[str], pipeline: str, topology: str, kernels: bool = True) -> Figures:
    """The sum over the programs of a step."""
    total = Figures(way, 0.0, 0, 0, 0.0, 0.0)
    for text in texts:
        total = _sum(total, _compiled(name, way, text, pipeline, topology, kernels))
    return total


def _passed(text: str, pipeline: str) -> ModuleOp:
    module = parse_module(text)
    run_pipeline(module, passes=pipeline, verify=False)
    return module


def _stablehlo(module: ModuleOp, kernels: bool = True) -> str:
    """Return the text of a program for a TPU; without `kernels`, templates are lowered as for a platform that has none,
    to ops that libtpu compiles as well."""
    return stablehlo_text(emit(module, platform="tpu" if kernels else "cuda"), locations=False)


def _compiled(name: str, way: str, text: str, pipeline: str, topology: str, kernels: bool = True) -> Figures:
    module = _passed(text, pipeline)
    stablehlo = _stablehlo(module, kernels)
    report = report_stablehlo(stablehlo, topology, name=f"{name}, {way}", options=options_of(module))
    program = report.program
    microseconds, exposed = 1e6 * report.seconds, 1e6 * report.exposed
    temporary = program.memory.temporaries
    return Figures(way, microseconds, len(report.costs), temporary, exposed, program.seconds, report.complete)


def _sum(a: Figures, b: Figures, times: int = 1) -> Figures:
    return Figures(
        a.way,
        a.microseconds + times * b.microseconds,
        a.ops + times * b.ops,
        max(a.temporary, b.temporary),
        a.exposed + times * b.exposed,
        a.compile_seconds + b.compile_seconds,
        a.complete and b.complete,
    )


def per_op(name: str, parts: list[RehearsedProgram], topology: str) -> Figures:
    """Compile each recorded op as a separate program, equal ops once: the programs of eager execution, without the
    host's time."""
    texts: Counter[str] = Counter()
    for program in parts:
        records = program.records
        for index in range(len(records)):
            alone = extract(records, [index])
            live = CutPlan.of(alone.state).results
            texts[print_module(import_trace(alone.state.records(), live, (), {}).module)] += 1
    pipeline, total = for_target(Target.parse(topology)), Figures("op by op", 0.0, 0, 0, 0.0, 0.0)
    for text, count in texts.items():
        total = _sum(total, _compiled(name, "an op", text, pipeline, topology), count)
    return total


def _imported(part: RehearsedProgram) -> str:
    """A program as it comes to the passes."""
    return print_module(import_trace(part.records, part.live, part.dead, part.names).module)
