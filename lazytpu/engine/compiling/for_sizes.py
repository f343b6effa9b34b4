"""Programs for many sizes: the one of a trace's bucket, how its step goes on until that is compiled, and the exact one
of sizes that come often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lazytpu.engine.compiling.background import Background
from lazytpu.engine.compiling.choice import Unknown
from lazytpu.engine.compiling.compiler import Compiler
from lazytpu.engine.compiling.hot_sizes import RECORD, Heat
from lazytpu.engine.compiling.jobs import Job
from lazytpu.engine.launching.compiled import Compiled, fitting
from lazytpu.engine.launching.sized import AtSizes
from lazytpu.engine.recompiles.reasons import hot_size
from lazytpu.engine.sizes import buckets
from lazytpu.engine.sizes.templates import OneSize, Sized
from lazytpu.engine.sizes.unexpected import LookingFor
from lazytpu.inspection.terminal import say
from lazytpu.options import options
from lazytpu.runtime.errors import CompileError
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import CutPlan

Slot = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobAtSizes:
    """The job of a bucket's program, at the sizes of one trace: as far as a step needs it that runs without the
    program."""

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
        """The program of the bucket that a trace with this plan is in, at its sizes, or a job, and whether it was there
        already. None for a trace of one size: the first of its kind, or one that `pad-sizes` or XLA refuses.

        The other arguments are those of `Background.program`; with no `patience` the program is compiled here.
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
        except (OneSize, CompileError) as error:  # the program of one size may be another matter
            bucket.refused[live] = str(error)
        return None

    def look_at(self, plan: CutPlan, trace: Trace, live: Slot, dead: Slot) -> None:
        """Called at each cut of a trace that has programs for many sizes, before one is chosen. Where such programs
        may not serve, they are forgotten. Where their sizes have come often, the exact program is compiled, and takes
        their place when it is there."""
        heat: Heat | None = plan.sized
        if heat is None:  # another thread has looked
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
        """The exact program of a trace, compiled here, as that of its bucket is refused for this `reason` from now
        on."""
        sized = self.compiler.sized(trace)
        if sized is not None:
            sized.bucket.refused[live] = reason
        _forget(plan)
        program = plan.programs[live, dead] = self.compiler.compile(trace, live, dead)
        return program

    def _compile_exactly(
        self, plan: CutPlan, heat: Heat, program: AtSizes, trace: Trace, live: Slot, dead: Slot
    ) -> None:
        because = hot_size(heat.text, trace.state.records()[0].line)
        heat.wanted, heat.over = (live, dead), True  # other threads need not begin it, too
        try:
            prepared = self.compiler.prepare(trace, live, dead, because)
            if prepared.ready is None:
                heat.job = self.background.behind(prepared, program)
            else:
                self._replace(plan, heat, prepared.ready)
        except Exception as error:  # noqa: BLE001  (whatever it is: the step has a program, and needs no other)
            say(f"there is no exact program of sizes that come often: {error}")
        except BaseException:  # an interrupt: the step comes again
            heat.over = False
            raise

    @staticmethod
    def _replace(plan: CutPlan, heat: Heat, exact: Compiled | None) -> None:
        """From now on a trace has its exact program, unless it is none."""
        heat.job = None
        if exact is None or isinstance(exact, AtSizes):  # XLA refused it, or the process ends
            return
        _forget(plan)
        plan.programs[heat.wanted] = exact

    def _shared(
        self, sized: Sized, trace: Trace, live: Slot, dead: Slot, patience: float, unknown: Callable[[], Unknown]
    ) -> tuple[Compiled | Job, bool]:
        """The program of the bucket, at no sizes yet. Raises OneSize and CompileError."""
        plan = sized.bucket.plan
        known = fitting(plan, live, dead)
        if known is not None:
            return known, True
        prepare = partial(self.compiler.prepare_bucket, sized, trace, live, dead)
        if not patience:
            return self.compiler.build(prepare()), False
        return self.background.program(plan, live, dead, patience, prepare, unknown)

    def _bound(self, shared: Compiled, sized: Sized, trace: Trace, live: Slot, dead: Slot) -> AtSizes | None:
        """A program of a bucket at the sizes of a trace, at which it is verified. None where the trace has an exact
        program instead: the other one does not serve there, or is wrong, and is dropped."""
        refused = OneSize("binding its sizes failed, which is a bug: sharing_errors in lazytpu.metrics()")
        with LookingFor("the sizes of a run"):
            try:
                if not self.compiler.verifier.verify(shared, sized):
                    return None
                return AtSizes.bind(shared, sized.sizes, sized.records)
            except OneSize as error:
                refused = error
            except ValueError as error:  # a rule of pad-sizes gives other sizes than torch
                refused = OneSize(str(error))
        self.compiler.verifier.drop(shared, sized, trace, live, dead, refused)
        return None


def _forget(plan: CutPlan) -> None:
    """Forget the programs for many sizes of a trace; its bucket keeps them."""
    for key, program in list(plan.programs.items()):
        if isinstance(program, AtSizes):
            plan.programs.pop(key, None)
    plan.sized = None
