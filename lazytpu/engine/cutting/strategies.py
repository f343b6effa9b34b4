"""Strategies that compute the results of a cut: by its program, by a substitute while that is compiled, or on the host.

The chooser picks a strategy. A strategy stores no cut: `run` takes it, immediately or after other cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from lazytpu.aten.errors import Check
from lazytpu.engine.compiling.for_sizes import ForSizes, JobAtSizes
from lazytpu.engine.compiling.jobs import Job
from lazytpu.engine.cutting.agreement import Turn
from lazytpu.engine.cutting.cut import Cut
from lazytpu.engine.cutting.on_host import HostWay, OnHost
from lazytpu.engine.cutting.stepwise import Stepwise
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.metrics import Metrics
from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.buffers.copies import copies_of
from lazytpu.runtime.errors import OutOfMemory
from lazytpu.trace.value import again

Away = Callable[[], AbstractContextManager[Any]]
"""Returns a context for the time in which the launching thread waits for other ranks; other threads may launch ahead in
it."""


class Strategy:
    """A strategy to run a cut.

    `program` is its single program, the job that compiles it, or None. `hit` says whether the program existed before.
    With `collective` it launches collectives and keeps the order of the cuts. Unless it `launches`, it has no effects
    when it fails.
    """

    __slots__ = ()

    program: Any
    hit: bool
    collective = False
    launches = True

    @property
    def programs(self) -> Sequence[Any]:
        """All programs that it may launch."""
        return (self.program,)

    def run(self, cut: Cut) -> Strategy | None:
        """Set the buffers of a cut's live values. If it returns a strategy, it had no effects, and that strategy is to
        run instead."""
        raise NotImplementedError

    def defer(self, away: Away) -> Sequence[Turn]:
        """Prepare to run later on the launching thread: announce the collectives now and return their tickets."""
        return ()


@dataclass(slots=True)
class Launch(Strategy):
    """Launch one program. `checks` are its checks with other source lines. `copies` replace donated inputs that are
    still in use, by index."""

    program: Compiled
    hit: bool = True
    checks: tuple[Check, ...] | None = None
    copies: Mapping[int, Buffer] | None = None

    def run(self, cut: Cut) -> Strategy | None:
        trace, held, inputs, program = cut.trace, cut.held, cut.trace.buffers, self.program
        if self.copies is not None or cut.kept:
            inputs = self._copied(cut)
        buffers = program.launch(inputs, trace.numbers, self.checks, trace.mode in ("strict", "debug"))
        if len(held) != len(buffers):
            by_slot = dict(zip(program.binding.live, buffers, strict=True))
            buffers = [by_slot[slot] for slot, _ in held]
        for (_, value), buffer in zip(held, buffers):  # without `strict`, which costs 0.4 us
            value.buffer = buffer
        program.queue.inflight.keep_up()
        return None

    def _copied(self, cut: Cut) -> list[Buffer]:
        """Return the inputs, with copies of those that the program donates although they are still in use."""
        buffers: list[Buffer] = cut.trace.buffers
        copies = dict(self.copies or {})
        needed = [i for i in cut.kept if i in self.program.binding.donated and i not in copies]
        if needed:
            copies.update(zip(needed, copies_of([buffers[i] for i in needed]), strict=True))
        return [copies.get(i, buffer) for i, buffer in enumerate(buffers)]


@dataclass(slots=True)
class LaunchSized(Launch):
    """Launch a program for many sizes. If its padding does not fit into memory, continue with the exact program.

    A deferred cut cannot do that, since the launching thread compiles nothing.
    """

    for_sizes: ForSizes | None = None

    def run(self, cut: Cut) -> Strategy | None:
        try:
            return Launch.run(self, cut)
        except OutOfMemory as error:
            if error.lost != () or cut.pending is not None:
                raise
            full = error.reason
        assert self.for_sizes is not None
        return Launch(self.for_sizes.instead(full, cut.plan, cut.trace, cut.live, cut.dead), self.hit)


@dataclass(slots=True)
class Meanwhile(Strategy):
    """Run a substitute while the program is compiled: a quick program, its compiled parts, or else op by op.

    If the compilation failed, raise its error after the results are computed, as for earlier steps.
    """

    program: Job | JobAtSizes
    hit: bool
    stepwise: Stepwise
    metrics: Metrics

    def run(self, cut: Cut) -> Strategy | None:
        job, metrics = self.program, self.metrics
        if job.compiled is not None:  # finished while this cut was deferred
            Launch(job.compiled).run(cut)
        elif job.meanwhile is not None:
            Launch(job.meanwhile).run(cut)
            if job.way == "quick":
                metrics.quick += 1
            else:
                metrics.clustered += 1
        else:
            self.stepwise.run(cut)
            metrics.stepwise += 1
        if job.error is not None:
            raise again(job.error)
        return None


@dataclass(slots=True)
class Host(Strategy):
    """Compute the results on the host, without a program. If torch's CPU kernels refuse, return the strategy from
    `otherwise`."""

    way: HostWay
    on_host: OnHost
    otherwise: Callable[[Cut], Strategy]

    program = None
    hit = True
    launches = False

    def run(self, cut: Cut) -> Strategy | None:
        buffers = self.on_host.run(self.way, cut.plan, cut.trace, cut.live)
        if buffers is None:
            return self.otherwise(cut)
        for (_, value), buffer in zip(cut.held, buffers, strict=True):
            value.buffer = buffer
        return None
