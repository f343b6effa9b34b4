"""How a cut gets its results: by a program, by something else while that is compiled, or on the host.

The chooser picks a strategy, which holds no cut: it runs on the one that it is given, now or behind other cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
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
"""Entered while the launching thread waits for other processes: others may launch ahead of it then."""


class Strategy:
    """One way to run a cut. `hit` says whether what it runs was compiled before; `compiled` is its program, if it is
    one, and `programs` are all that it may launch, or their jobs. With `collective` it launches collectives, and keeps
    the order of the cuts. Unless it `launches`, nothing has happened when it fails."""

    __slots__ = ()

    hit: bool
    compiled: Compiled | None
    collective = False
    launches = True

    @property
    def programs(self) -> Iterable[Any]:
        return ()

    def run(self, cut: Cut) -> Strategy | None:
        """Give the held values of a cut their buffers. Or return the strategy to go on with instead: then nothing has
        happened."""
        raise NotImplementedError

    def sparing(self, cut: Cut, kept: Sequence[int]) -> Strategy:
        """The same strategy, which takes no memory of these inputs: cuts that wait need them as well."""
        raise NotImplementedError

    def defer(self, away: Away) -> Sequence[Turn]:
        """Get ready to run later, on the thread that launches cuts in order: announce the collectives now."""
        return ()


@dataclass(slots=True)
class Launch(Strategy):
    """Launch one program. `checks` are its checks with other source lines, and `copies` of inputs, by index, are what
    it takes in place of those that somebody still needs."""

    compiled: Compiled
    hit: bool = True
    checks: tuple[Check, ...] | None = None
    copies: Mapping[int, Buffer] | None = None

    @property
    def programs(self) -> Iterable[Any]:
        return (self.compiled,)

    def run(self, cut: Cut) -> Strategy | None:
        trace, held, inputs = cut.trace, cut.held, cut.trace.buffers
        if (copies := self.copies) is not None:
            inputs = [copies.get(i, buffer) for i, buffer in enumerate(inputs)]
        buffers = self.compiled.launch(inputs, trace.numbers, self.checks, trace.mode in ("strict", "debug"))
        if len(held) != len(buffers):
            by_slot = dict(zip(self.compiled.binding.live, buffers, strict=True))
            buffers = [by_slot[slot] for slot, _ in held]
        for (_, value), buffer in zip(held, buffers):  # without `strict`, which costs 0.4 us
            value.buffer = buffer
        self.compiled.queue.inflight.keep_up()
        return None

    def sparing(self, cut: Cut, kept: Sequence[int]) -> Launch:
        before = self.copies or {}
        copied = [i for i in kept if i in self.compiled.binding.donated and i not in before]
        if not copied:
            return self
        copies = copies_of([cut.trace.buffers[i] for i in copied])
        return replace(self, copies={**before, **dict(zip(copied, copies, strict=True))})


@dataclass(slots=True)
class LaunchSized(Launch):
    """Launch a program for many sizes. Where its padding does not fit into memory, the exact program may. Not behind
    other cuts: the thread that launches these compiles nothing."""

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
    """The program is being compiled: run a quick one, or its parts, if these are compiled, else op by op. If it could
    not be compiled, this raises why, with the results computed, as those of the steps before it. `kept` are inputs
    whose memory is not to be taken."""

    job: Job | JobAtSizes
    hit: bool
    stepwise: Stepwise
    metrics: Metrics
    kept: Sequence[int] = ()

    compiled = None

    @property
    def programs(self) -> Iterable[Any]:
        return (self.job,)

    def run(self, cut: Cut) -> Strategy | None:
        job, metrics = self.job, self.metrics
        if job.compiled is not None:  # by now: this has waited behind other cuts
            Launch(job.compiled).sparing(cut, self.kept).run(cut)
        elif job.meanwhile is not None:
            Launch(job.meanwhile).sparing(cut, self.kept).run(cut)
            if job.way == "quick":
                metrics.quick += 1
            else:
                metrics.clustered += 1
        else:
            dead = tuple([i for i in cut.dead if i not in self.kept])
            self.stepwise.run(cut, dead)
            metrics.stepwise += 1
        if job.error is not None:
            raise again(job.error)
        return None

    def sparing(self, cut: Cut, kept: Sequence[int]) -> Meanwhile:
        return replace(self, kept=kept)


@dataclass(slots=True)
class Host(Strategy):
    """Compute the results on the host, without a program. Where torch's kernels for the CPU refuse, `otherwise` says
    what to do instead."""

    way: HostWay
    on_host: OnHost
    otherwise: Callable[[Cut], Strategy]

    hit = True
    compiled = None
    launches = False

    def run(self, cut: Cut) -> Strategy | None:
        buffers = self.on_host.run(self.way, cut.plan, cut.trace, cut.live)
        if buffers is None:
            return self.otherwise(cut)
        for (_, value), buffer in zip(cut.held, buffers, strict=True):
            value.buffer = buffer
        return None

    def sparing(self, cut: Cut, kept: Sequence[int]) -> Host:
        return self  # it takes no memory
