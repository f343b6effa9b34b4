"""Traces of few elements, run on the host as long as that is cheaper than to compile them (`options.on_host`).

Short ones: a script has such traces between its steps: the sum of its losses, whether one is NaN, how many labels a
batch has, a `cat` of results that grows, each size once. Each would be a program, 30 to 60 ms, that may never run
again. torch's own kernels for the CPU compute it in 0.1 ms. Only ops whose results are rounded once, or not at all, run
this way, and with denormal numbers flushed as the device does, so that the bits are those of the program.

Those that vary: an episode has as many steps as it has, a solver chooses its own, a batch is sampled so that a tensor
occurs in it twice. Each is another trace of the same ops at the same lines. When `Families` has seen some of them,
which have programs, further ones run here, of any length and of any op, 10 us each where a program takes 5 ms for each.
As with the quick tier, results are equal to rounding. Those that vary in sizes alone share the program of a bucket:
they run by it where it is there, and here until all of its sizes together have come often enough for it. Of short ones
the second shows that they vary.

A trace that comes again and again gets its program in the end. What ran here is in `lazytpu.explain()`; the first of
those that vary is told on a terminal.

A process whose traces are all short, as one that tries out ops, always gets programs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import prod

import torch

from lazytpu.aten.host_arrays import copied, to_numpy
from lazytpu.engine.cutting.families import Families
from lazytpu.engine.cutting.host_records import computable, compute, exact, last_uses, light, small
from lazytpu.engine.launching.inflight import Inflight
from lazytpu.engine.recompiles.host_runs import HostLog, HostRuns, program_made
from lazytpu.engine.sizes.templates import Bucket, Sized
from lazytpu.inspection.terminal import say
from lazytpu.options import options
from lazytpu.runtime.buffers.buffer import MEMORY, Buffer, Origin
from lazytpu.runtime.xla import client
from lazytpu.trace.extract import Slots
from lazytpu.trace.recorder import Trace
from lazytpu.trace.settings import DEFAULT_DTYPE, PRECISION
from lazytpu.trace.trie import CutPlan, Record
from lazytpu.trace.value import Layout

BESIDE = 32
"Records of a trace of this process from which on it does more than try out ops."
RECORDS = 32
"Of a short trace."
OF_A_PARAMETER = 4
"Records of a step for each parameter of a model: a process with a model on the device does more than try out ops."
HOST = "the host"
"What `Origin.program` is of results."
ELEMENTS = 1024
"Of one value of a short trace that runs on the host before anybody knows whether it varies; up to `FEW` near it."
ELEMENTS_VARYING = 262_144
"Of one value of a trace that varies: a layer of 512 x 512."
ELEMENTS_MOVED = 16_777_216
MOVED = 4_194_304
"""Of one value of a trace that varies and only moves elements, as one that writes the masks of a batch of requests,
where the device's memory is the host's. One with more than `MOVED` elements runs on the host less often."""
RUNS = 100
FEW = 16_384
"""How often the same trace may run on the host, if no value has more than `FEW` elements; others run less often. XLA
takes some 500 times as long for an op. It is a count, and no time, so that the next run of a script needs the programs
that this one made."""


@dataclass(slots=True)
class Runs:
    """How often traces may still run on the host."""

    left: int


@dataclass(slots=True, eq=False)
class HostWay:
    """How a trace runs on the host: its records, and the global switches they depend on. It has so many `runs` left,
    and then has its program; one of those that vary shares them with all of its `bucket`, if it is in one. It is short,
    or one of those that vary; `counted` is where the log counts it, once it ran."""

    records: list[Record]
    layouts: dict[int, Layout]
    settings: frozenset[tuple[str, str]]
    runs: Runs
    varies: bool
    bucket: Bucket | None = None
    counted: HostRuns | None = None

    @property
    def over(self) -> bool:
        """Whether it should have a program, or there is one that serves it."""
        return self.runs.left <= 0 or (self.bucket is not None and self.bucket.plan.known)


REFUSED = HostWay([], {}, frozenset(), Runs(0), varies=False)


class OnHost:
    """Runs traces on the host. `largest` is the longest trace that this process has run; `undisturbed` hides ops from
    modes of the user, `sized` finds the bucket of a trace, and `parameters` counts those of models on the device."""

    def __init__(
        self,
        inflight: Inflight,
        undisturbed: Callable[[], AbstractContextManager[None]],
        sized: Callable[[Trace], Sized | None],
        parameters: Callable[[], int],
    ):
        self.inflight = inflight
        self.undisturbed = undisturbed
        self.sized = sized
        self.parameters = parameters
        self.families = Families()
        self.log = HostLog()
        self.largest = 0
        self._told = False

    def way(self, plan: CutPlan, trace: Trace) -> HostWay | None:
        """How a trace runs on the host; None when it should have a program."""
        self.largest = max(self.largest, trace.state.depth)
        if plan.known or plan.checks or plan.collective or options.dump:
            return None
        if self.largest < BESIDE:
            self.largest = max(self.largest, OF_A_PARAMETER * self.parameters())
            if self.largest < BESIDE:
                return None
        if plan.host is None:
            plan.host = self._found(trace)
        way: HostWay = plan.host
        if torch.is_autocast_enabled("cpu"):
            return None
        if way.over:
            if way.counted is not None:
                program_made(way.counted, way.records)
                plan.host = REFUSED
            return None
        if not way.settings <= {(DEFAULT_DTYPE, str(torch.get_default_dtype()))}:
            return None
        if way.varies and torch.are_deterministic_algorithms_enabled():  # the same bits in each run
            return None
        return way

    def run(self, way: HostWay, plan: CutPlan, trace: Trace, live: Sequence[int]) -> list[Buffer] | None:
        """The buffers of the slots `live`, all that is needed of a trace. None where torch refuses: nothing has
        happened then, and from then on the trace has a program."""
        metrics = self.inflight.metrics
        start, waited = time.thread_time(), metrics.wait_ms
        enabled = torch.is_grad_enabled()
        try:
            with self.undisturbed(), _flushing():
                buffers = self._compute(way, plan, trace, live)
        except Exception:  # noqa: BLE001  (whatever it is: the program meets it again, and raises it in full)
            buffers = None
        finally:
            torch.set_grad_enabled(enabled)  # an interrupt on the way into no_grad() or out of it would leave it off
        if buffers is None:
            plan.host = REFUSED
            return None
        metrics.on_host += 1
        way.runs.left -= 1
        counted = way.counted or self._counted(way)
        counted.runs += 1
        counted.seconds += time.thread_time() - start + 1e-3 * (metrics.wait_ms - waited)
        return buffers

    def _counted(self, way: HostWay) -> HostRuns:
        """Where the runs of a trace are counted that ran for the first time."""
        way.counted = self.log.begins(way.records, varies=way.varies)
        if way.varies and not self._told:
            self._told = True
            say(
                f"traces of {way.counted.name} vary, as one of {len(way.records):,} ops from {way.counted.begins}: "
                "further ones run on the host, by torch's kernels for the CPU, and compile nothing; LAZYTPU_ON_HOST=0 "
                "compiles them, lazytpu.explain() lists them"
            )
        return way.counted

    def _found(self, trace: Trace) -> HostWay:
        """Whether and how a trace can run on the host that is met for the first time."""
        records = trace.state.records()
        layouts = Slots(records).layouts
        near = client.platform() == "cpu" and all(map(light, records))
        short = len(records) <= RECORDS and all(small(layout, FEW) for layout in layouts.values())
        elements = FEW if near else ELEMENTS
        if short and all(small(layout, elements) for layout in layouts.values()) and exact(records, layouts, elements):
            return HostWay(records, layouts, _settings(records), Runs(RUNS), varies=False)
        if not self.families.vary(records, short):
            return REFUSED
        most, few = (ELEMENTS_MOVED, MOVED) if near else (ELEMENTS_VARYING, FEW)
        possible = all(small(layout, most) for layout in layouts.values())
        if not possible or not all(computable(record, layouts) for record in records):
            return REFUSED
        largest = max(prod(layout.shape) for layout in layouts.values())
        # The host is as precise as it gets.
        settings = frozenset((name, value) for name, value in _settings(records) if name != PRECISION)
        runs = Runs(RUNS * few // max(few, largest))
        sized = self.sized(trace)
        if sized is None or sized.bucket.refused:
            return HostWay(records, layouts, settings, runs, varies=True)
        bucket = sized.bucket
        if bucket.on_host is None:
            bucket.on_host = runs
        return HostWay(records, layouts, settings, bucket.on_host, varies=True, bucket=bucket)

    def _compute(self, way: HostWay, plan: CutPlan, trace: Trace, live: Sequence[int]) -> list[Buffer] | None:
        """The buffers of the slots `live`; None when an input failed."""
        buffers: list[Buffer] = trace.buffers
        self.inflight.settle_for(buffers)
        if any(buffer.error is not None or (buffer.outcome and buffer.outcome.errors) for buffer in buffers):
            return None
        layouts = way.layouts
        flat = {
            slot: copied(buffer.fetch() if buffer.host is None else buffer.host, layouts[slot].dtype)
            for slot, buffer in zip(plan.inputs, buffers, strict=True)
        }
        made_by: dict[int, Record] = {}
        for record, over in zip(way.records, last_uses(way.records, live), strict=True):
            made_by.update((slot, record) for slot in compute(record, flat, layouts, trace.numbers, over))
        return [_upload(flat[slot], layouts[slot], made_by[slot]) for slot in live]


def _settings(records: Sequence[Record]) -> frozenset[tuple[str, str]]:
    return frozenset(setting for record in records for setting in record.settings)


def _upload(flat: torch.Tensor, layout: Layout, record: Record) -> Buffer:
    array = to_numpy(flat).reshape(layout.memory_shape)
    MEMORY.note_execution(0, array.nbytes, 0)
    return Buffer(client.to_device(array), array.nbytes, Origin(str(record.op), record.line, HOST))


@contextmanager
def _flushing() -> Iterator[None]:
    """Denormal numbers count as zeros on this thread, as in XLA's programs for CPUs and TPUs: its pools of threads run
    that way, and a thread that runs a program itself switches."""
    smallest = sys.float_info.min
    if client.platform() == "gpu" or smallest / 2 == 0.0:
        yield
        return
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
