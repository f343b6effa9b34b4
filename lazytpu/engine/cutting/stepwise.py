"""Execution of a trace without its program: each record runs by its own program, shared by all traces with the same op.

The results equal those of the whole trace's program. Live values get buffers. Values not needed any more are freed or
donated to later records. Random numbers use the recorded seeds and offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lazytpu.aten.errors import Check
from lazytpu.engine.compiling.choice import Unknown
from lazytpu.engine.compiling.prepared import Prepared
from lazytpu.engine.cutting.cut import NAMELESS, Cut
from lazytpu.engine.launching.compiled import Compiled, fitting
from lazytpu.engine.trace_cache import lookup
from lazytpu.runtime.buffers.buffer import Origin
from lazytpu.trace.extract import Extracted, Slots, extract
from lazytpu.trace.pending import Trace
from lazytpu.trace.trie import CutPlan, Record


@dataclass(slots=True)
class RecordStep:
    """One record as a trace of its own (`part`).

    `live` are its slots that are needed later, `dead` its inputs that are not needed after it. `done_with` are slots of
    the whole trace that are not needed any more. `compiled`, `checks` and `origin` are set at the first run; `compiled`
    stays None if there is nothing to run.
    """

    record: Record
    part: Extracted
    live: tuple[int, ...]
    dead: tuple[int, ...]
    done_with: tuple[int, ...]
    ready: bool = False
    compiled: Compiled | None = None
    checks: tuple[Check, ...] = ()
    origin: Origin | None = None


class Stepwise:
    """Runs traces one record at a time. `prepare` translates a trace, `build` compiles the translation, and `keep_up`
    waits if the host is far ahead of the device."""

    def __init__(
        self,
        prepare: Callable[[Trace, tuple[int, ...], tuple[int, ...]], Prepared],
        build: Callable[[Prepared], Compiled],
        keep_up: Callable[[], None],
    ):
        self.prepare = prepare
        self.build = build
        self.keep_up = keep_up

    def unknown(self, cut: Cut) -> Unknown:
        """Return the programs that `run` would have to compile first. Inspecting a record takes some 0.1 ms the first
        time."""
        steps = self._steps(cut)
        unknown = {
            (step.part.state, step.live, step.dead) for step in steps if not step.ready and not _has_program(step)
        }
        return Unknown(len(unknown), len(unknown) / max(1, len(steps)))

    def _steps(self, cut: Cut) -> list[RecordStep]:
        """Return the steps of a cut, cached in its plan."""
        steps = cut.plan.steps.get((cut.live, cut.dead))
        if steps is None:
            steps = steps_of(cut.plan, cut.trace.state.records(), frozenset(cut.live), frozenset(cut.dead))
            cut.plan.steps[cut.live, cut.dead] = steps
        return steps

    def run(self, cut: Cut) -> None:
        """Set the buffers of a cut's live values, one record after the other.

        Raise the error of a record; values computed before it have their buffers then.
        """
        trace, values = cut.trace, dict(cut.held)
        steps = self._steps(cut)
        buffers: dict[int, Any] = dict(zip(cut.plan.inputs, trace.buffers, strict=True))
        for step in steps:
            self._step(step, trace, buffers)
            for slot in step.part.origins:
                value = values.get(slot)
                if value is not None and value.buffer is None and slot in buffers:
                    value.buffer = buffers[slot]
                    buffers[slot] = value.buffer  # this may be a deferred buffer
            self.keep_up()
            for slot in step.done_with:
                buffers.pop(slot, None)

    def _step(self, step: RecordStep, trace: Trace, buffers: dict[int, Any]) -> None:
        """Run one record and add its results to `buffers`."""
        part = step.part
        inputs = [buffers[slot] for slot in part.inputs]
        numbers = [trace.numbers[i] for i in part.numbers]
        if not step.ready:
            self._ready(step, Trace(part.state, NAMELESS, inputs, numbers, [], trace.begun))
        compiled = step.compiled
        if compiled is None:
            return
        results = compiled.launch(inputs, numbers, checks=step.checks, alone=True)
        needed = set(step.live)
        for slot, buffer in zip(compiled.binding.live, results, strict=True):
            if slot in needed:
                buffer.origin = step.origin
                buffers[part.origins[slot]] = buffer

    def _ready(self, step: RecordStep, trace: Trace) -> None:
        """Find the program of a record, or compile it on this thread."""
        plan = trace.state.plan
        if plan is None:
            plan = trace.state.plan = CutPlan.of(trace.state)
        compiled = fitting(plan, step.live, step.dead)
        if compiled is None:
            prepared = self.prepare(trace, step.live, step.dead)
            if step.live or prepared.binding.checks:
                compiled = plan.programs[step.live, step.dead] = self.build(prepared)
        if compiled is not None and not step.live and not compiled.binding.checks:
            compiled = None
        if compiled is not None:
            line = step.record.line  # another record may have had this program first
            step.checks = tuple(replace(check, line=line) for check in compiled.binding.checks)
            step.origin = Origin(str(step.record.op), line, compiled.program.name)
        step.compiled = compiled
        step.ready = True


def _has_program(step: RecordStep) -> bool:
    """Return whether the program of a record is in memory or on disk."""
    plan = step.part.state.plan
    if plan is not None and fitting(plan, step.live, step.dead) is not None:
        return True
    content = lookup.content(step.part.state.records(), step.live, step.dead)
    return content is not None and lookup.known(content)


def steps_of(plan: CutPlan, records: Sequence[Record], live: frozenset[int], dead: frozenset[int]) -> list[RecordStep]:
    """Return the steps of a trace whose results are the slots `live` and whose inputs `dead` may be donated."""
    slots = Slots(records)
    extracts = [extract(records, (i,), slots) for i in range(len(records))]
    last = {slot: i for i, record_part in enumerate(extracts) for slot in record_part.origins}
    kept = live | {slot for i, slot in enumerate(plan.inputs) if i not in dead}
    steps: list[RecordStep] = []
    for i, (record, record_part) in enumerate(zip(records, extracts, strict=True)):
        ending = {slot for slot in record_part.origins if last[slot] == i and slot not in kept}
        made_slots = [new for new, old in enumerate(record_part.origins) if slots.makers.get(old) == i]
        steps.append(
            RecordStep(
                record,
                record_part,
                tuple([new for new in made_slots if record_part.origins[new] not in ending]),
                tuple([k for k, slot in enumerate(record_part.inputs) if slot in ending]),
                tuple(ending),
            )
        )
    return steps
