"""Runs a trace without its program: each record by a program of its own, which traces that have the same op share.

The results are those that the program of the whole trace gives. What is alive at the cut gets a buffer, what no record
needs any more is freed or given to a later record, random numbers come from the seeds and offsets that were recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lazytpu.aten.errors import Check
from lazytpu.engine.compiling.compiled import Compiled
from lazytpu.engine.compiling.compiler import Prepared
from lazytpu.engine.errors.lineage import Outcome
from lazytpu.runtime.buffer import Buffer, Origin
from lazytpu.runtime.laid_out import result
from lazytpu.trace.extract import Extracted, Slots, extract
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import CutPlan, Record
from lazytpu.trace.value import Value

NAMELESS = 0  # the epoch of no trace: the values of a part have no names of parameters


class Runner(Protocol):
    """What runs programs: the engine."""

    def fitting(self, plan: CutPlan, live: tuple[int, ...], dead: tuple[int, ...]) -> Compiled | None:
        """A program compiled already that computes at least `live` and takes at most `dead`."""
        ...

    def launch(
        self, compiled: Compiled, buffers: Sequence[Buffer], numbers: list[Any], checks: tuple[Check, ...]
    ) -> tuple[list[Any], list[Outcome]]:
        """Run a program; the arrays of its results, and last its status, which is looked at later by `checks`. With
        them the outcomes of the groups of its results."""
        ...


@dataclass(slots=True)
class Step:
    """One record as a trace of its own, in a trace where `live` and `dead` are the slots of the part that are needed
    later, and the inputs of the part that nothing needs after it. `done_with` are slots of the whole trace.

    `compiled` and what is said of its results is set at the first run; None then means that there is nothing to run.
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
    """Runs traces one record at a time, for an engine."""

    def __init__(
        self,
        runner: Runner,
        prepare: Callable[[Trace, tuple[int, ...], tuple[int, ...]], Prepared],
        build: Callable[[Prepared], Compiled],
    ):
        self.runner = runner
        self.prepare = prepare
        self.build = build

    def run(self, plan: CutPlan, trace: Trace, held: Sequence[tuple[int, Value]], dead: tuple[int, ...]) -> None:
        """Give the values `held` of a trace, which are all that are alive, their buffers, one record after the other.
        The memory of its inputs `dead` may be taken.

        Raises what went wrong with one record; values that were computed before have their buffers then.
        """
        values = dict(held)
        key = tuple(values), dead
        steps = plan.steps.get(key)
        if steps is None:
            steps = plan.steps[key] = steps_of(plan, trace.state.records(), frozenset(values), frozenset(dead))
        buffers: dict[int, Any] = dict(zip(plan.inputs, trace.buffers, strict=True))
        for step in steps:
            self._step(step, trace, buffers)
            for slot in step.part.origins:
                value = values.get(slot)
                if value is not None and value.buffer is None and slot in buffers:
                    value.buffer = buffers[slot]
            for slot in step.done_with:
                buffers.pop(slot, None)

    def _step(self, step: Step, trace: Trace, buffers: dict[int, Any]) -> None:
        part = step.part
        given = [buffers[slot] for slot in part.inputs]
        numbers = [trace.numbers[i] for i in part.numbers]
        if not step.ready:
            self._ready(step, Trace(part.state, NAMELESS, given, numbers, [], trace.begun))
        compiled = step.compiled
        if compiled is None:
            return
        results, outcomes = self.runner.launch(compiled, given, numbers, step.checks)
        needed = set(step.live)
        layouts = compiled.program.layouts
        for i, (slot, array, size) in enumerate(zip(compiled.live, results, compiled.nbytes, strict=False)):
            if slot in needed:
                outcome = outcomes[compiled.lineage.of[i]]
                buffers[part.origins[slot]] = result(layouts, i, array, size, step.origin, outcome)

    def _ready(self, step: Step, trace: Trace) -> None:
        """Find the program of a record, or compile it: here, on the thread that needs it."""
        plan = trace.state.plan
        if plan is None:
            plan = trace.state.plan = CutPlan.of(trace.state)
        compiled = self.runner.fitting(plan, step.live, step.dead)
        if compiled is None:
            prepared = self.prepare(trace, step.live, step.dead)
            if step.live or prepared.checks:
                compiled = plan.programs[step.live, step.dead] = self.build(prepared)
        if compiled is not None and not step.live and not compiled.checks:
            compiled = None
        if compiled is not None:
            line = step.record.line  # not that of the record which had this program first
            step.checks = tuple(replace(check, line=line) for check in compiled.checks)
            step.origin = Origin(str(step.record.op), line, compiled.program.name)
        step.compiled = compiled
        step.ready = True


def steps_of(plan: CutPlan, records: Sequence[Record], live: frozenset[int], dead: frozenset[int]) -> list[Step]:
    """The records of a trace, each with what becomes of its operands and results when the slots `live` are the results
    of the trace and its inputs `dead` may be overwritten."""
    known = Slots(records)
    parts = [extract(records, (i,), known) for i in range(len(records))]
    last = {slot: i for i, part in enumerate(parts) for slot in part.origins}
    kept = live | {slot for i, slot in enumerate(plan.inputs) if i not in dead}
    steps: list[Step] = []
    for i, (record, part) in enumerate(zip(records, parts, strict=True)):
        ending = {slot for slot in part.origins if last[slot] == i and slot not in kept}
        made = [new for new, old in enumerate(part.origins) if known.makers.get(old) == i]
        steps.append(
            Step(
                record,
                part,
                tuple([new for new in made if part.origins[new] not in ending]),
                tuple([k for k, slot in enumerate(part.inputs) if slot in ending]),
                tuple(ending),
            )
        )
    return steps
