"""Programs for many sizes: the program of a trace's bucket, the substitute until it is compiled, and the exact program
of frequent sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lazytpu.engine.compiling.background import Background
from lazytpu.engine.compiling.choice import Unknown
from lazytpu.engine.compiling.compiler import Compiler
from lazytpu.engine.compiling.hot_sizes import RECORD, Heat
from lazytpu.engine.compiling.jobs import Job
from lazytpu.engine.errors.unexpected import looking_for, note_bug
from lazytpu.engine.launching.compiled import Compiled, fitting
from lazytpu.engine.launching.sized import AtSizes
from lazytpu.engine.recompiles.reasons import hot_size
from lazytpu.engine.sizes import buckets
from lazytpu.engine.sizes.buckets import OneSize
from lazytpu.engine.sizes.templates import Sized
from lazytpu.inspection.terminal import say
from lazytpu.options import options
from lazytpu.runtime.errors import CompileError
from lazytpu.trace.pending import Trace
from lazytpu.trace.trie import CutPlan

Slot = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobAtSizes:
    """The job of a bucket's program at the sizes of one trace, reduced to the fields that a step without the program
    needs."""

    meanwhile: AtSizes | None
    way: str
    compiled: None = None
    error: None = None


class ForSizes:
    """Finds the programs of buckets, or has them compiled."""

    def __init__(self, compiler: Compiler, background: Background):
        self.compiler = compiler
        self.background = background

    def program(
        self, plan: CutPlan, trace: Trace, live: Slot, dead: Slot, patience: float, unknown: Callable[[], Unknown]
    ) -> tuple[Compiled | JobAtSizes, bool] | None:
        """Return the program of a trace's bucket at the trace's sizes, or a job, and whether it existed before.

        Return None for a trace with an exact program: the first of its kind, or one that `pad-sizes` or XLA refuses.
        The other arguments are as in `Background.program`; without `patience` the program is compiled on this thread.
        """
        sized = self.compiler.sized(trace)
        if sized is None or live in sized.bucket.refused:
            return None
        bucket = sized.bucket
        try:
            shared, hit = self._shared(sized, trace, live, dead, patience, unknown)
            if not isinstance(shared, Job):
                bucket.plan.programs[live, dead] = shared
                bound = self._bound(shared, sized, trace, live, dead)
                if bound is not None and plan.sized is None:
                    seconds = self.compiler.estimator.seconds(RECORD * trace.state.depth, 1.0)
                    plan.sized = Heat(sized, 1e3 * seconds, sized.waste)
                return None if bound is None else (bound, hit)
            if shared.error is None:
                meanwhile = shared.meanwhile
                bound = None if meanwhile is None else self._bound(meanwhile, sized, trace, live, dead)
                return None if bound is None and meanwhile is not None else (JobAtSizes(bound, shared.way), False)
            bucket.refused[live] = str(shared.error)
        except (OneSize, CompileError) as error:  # the exact program may still compile
            bucket.refused[live] = str(error)
        return None

    def look_at(self, plan: CutPlan, trace: Trace, live: Slot, dead: Slot) -> None:
        """Update a trace's programs for many sizes before one is chosen at a cut.

        Drop these programs where buckets are off. If the trace's sizes are frequent, compile the exact program, and
        replace them once it is ready.
        """
        heat: Heat | None = plan.sized
        if heat is None:  # another thread has updated it
            return
        if not buckets.active():
            _forget(plan)
        elif heat.job is not None:
            if heat.job.done.is_set():
                self._replace(plan, heat, heat.job.compiled)
        elif not heat.over and isinstance(program := plan.programs.get((live, dead)), AtSizes) and heat.ran(program):
            if trace.mode == "fused" and options.background_compile:
                self._compile_exactly(plan, heat, program, trace, live, dead)

    def instead(self, reason: str, plan: CutPlan, trace: Trace, live: Slot, dead: Slot) -> Compiled:
        """Refuse the bucket's program for this `reason` from now on, and return the trace's exact program, compiled on
        this thread."""
        sized = self.compiler.sized(trace)
        if sized is not None:
            sized.bucket.refused[live] = reason
        _forget(plan)
        program = plan.programs[live, dead] = self.compiler.compile(trace, live, dead)
        return program

    def _compile_exactly(
        self, plan: CutPlan, heat: Heat, program: AtSizes, trace: Trace, live: Slot, dead: Slot
    ) -> None:
        """Start to compile the exact program of frequent sizes."""
        because = hot_size(heat.text, trace.state.records()[0].line)
        heat.wanted, heat.over = (live, dead), True  # keep other threads from starting it as well
        try:
            prepared = self.compiler.prepare(trace, live, dead, because)
            if prepared.ready is None:
                heat.job = self.background.behind(prepared, program)
            else:
                self._replace(plan, heat, prepared.ready)
        except Exception as error:  # noqa: BLE001  (any error: the step has a program already)
            note_bug("preparing the exact program of frequent sizes", error)
            say(f"there is no exact program of sizes that come often: {error}")
        except BaseException:  # an interrupt: the step will be cut again
            heat.over = False
            raise

    @staticmethod
    def _replace(plan: CutPlan, heat: Heat, exact: Compiled | None) -> None:
        """Use the exact program of a trace from now on, if there is one."""
        heat.job = None
        if exact is None or isinstance(exact, AtSizes):  # XLA refused it, or the process ends
            return
        _forget(plan)
        plan.programs[heat.wanted] = exact

    def _shared(
        self, sized: Sized, trace: Trace, live: Slot, dead: Slot, patience: float, unknown: Callable[[], Unknown]
    ) -> tuple[Compiled | Job, bool]:
        """Return the bucket's program, not yet bound to sizes. Raise OneSize and CompileError."""
        plan = sized.bucket.plan
        compatible = fitting(plan, live, dead)
        if compatible is not None:
            return compatible, True
        prepare = partial(self.compiler.prepare_bucket, sized, trace, live, dead)
        if not patience:
            return self.compiler.build(prepare()), False
        return self.background.program(plan, live, dead, patience, prepare, unknown)

    def _bound(self, shared: Compiled, sized: Sized, trace: Trace, live: Slot, dead: Slot) -> AtSizes | None:
        """Verify a bucket's program at the sizes of a trace and bind it. Return None if the trace must have an exact
        program.

        The bucket's program then does not serve these sizes, or is wrong and is dropped.
        """
        refused = OneSize("binding its sizes failed, which is a bug: sharing_errors in lazytpu.metrics()")
        with looking_for("the sizes of a run"):
            try:
                if not self.compiler.verifier.verify(shared, sized):
                    return None
                return AtSizes.bind(shared, sized.sizes, sized.records)
            except OneSize as error:
                refused = error
            except ValueError as error:  # a rule of pad-sizes disagrees with torch
                refused = OneSize(str(error))
        self.compiler.verifier.drop(shared, sized, trace, live, dead, refused)
        return None


def _forget(plan: CutPlan) -> None:
    """Remove a trace's programs for many sizes; its bucket keeps them."""
    for key, program in list(plan.programs.items()):
        if isinstance(program, AtSizes):
            plan.programs.pop(key, None)
    plan.sized = None
