"""Programs for many sizes: the one of a trace's bucket, and how its step goes on until that is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lazytpu.engine.compiling.background import Background
from lazytpu.engine.compiling.choice import Unknown
from lazytpu.engine.compiling.compiler import Compiler, Prepared
from lazytpu.engine.compiling.jobs import Job
from lazytpu.engine.launching.compiled import Compiled, fitting
from lazytpu.engine.launching.sized import AtSizes
from lazytpu.engine.sizes.templates import OneSize, Sized
from lazytpu.runtime.errors import CompileError
from lazytpu.trace.extract import Slots
from lazytpu.trace.recorder import Trace

Slot = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobAtSizes:
    """The job of a bucket's program, at the sizes of one trace: as far as a step needs it that runs without the
    program."""

    meanwhile: AtSizes | None
    way: str
    error: None = None


class ForSizes:
    """Finds the programs of buckets, or has them compiled."""

    def __init__(self, compiler: Compiler, background: Background):
        self.compiler = compiler
        self.background = background

    def program(
        self, trace: Trace, live: Slot, dead: Slot, patience: float, unknown: Callable[[], Unknown]
    ) -> tuple[Compiled | JobAtSizes, bool] | None:
        """The program of the bucket that a trace is in, at its sizes, or a job, and whether it was there already. None
        for a trace of one size: the first of its kind, or one that `pad-sizes` or XLA refuses.

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
                return self._bound(shared, sized, trace), hit
            if shared.error is None:
                meanwhile = None if shared.meanwhile is None else self._bound(shared.meanwhile, sized, trace)
                return JobAtSizes(meanwhile, shared.way), False
            bucket.refused[live] = str(shared.error)
        except (OneSize, CompileError) as error:  # the program of one size may be another matter
            bucket.refused[live] = str(error)
        return None

    def _shared(
        self, sized: Sized, trace: Trace, live: Slot, dead: Slot, patience: float, unknown: Callable[[], Unknown]
    ) -> tuple[Compiled | Job, bool]:
        """The program of the bucket, at no sizes yet. Raises OneSize and CompileError."""
        plan = sized.bucket.plan
        known = fitting(plan, live, dead)
        if known is not None:
            return known, True

        def prepare() -> Prepared:
            return self.compiler.prepare_bucket(sized, trace, live, dead)

        if not patience:
            return self.compiler.build(prepare()), False
        return self.background.program(plan, live, dead, patience, prepare, unknown)

    def _bound(self, shared: Compiled, sized: Sized, trace: Trace) -> AtSizes:
        """A program of a bucket at the sizes of a trace. Raises OneSize."""
        layouts = Slots(trace.state.records()).layouts
        shapes = [layouts[slot].memory_shape for slot in shared.binding.live]
        try:
            return AtSizes.bind(shared, sized.sizes, shapes)
        except ValueError as error:  # a form fitted by chance what is not one: a miss, never a wrong result
            raise OneSize(str(error)) from error
