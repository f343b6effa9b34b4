"""Execution of small traces on the host while that is cheaper than to compile them (`options.on_host`).

Short traces occur between the steps of a script: the sum of its losses, whether one is NaN, the number of labels in a
batch, a `cat` of growing results, each size once. Each would need a program, 30 to 60 ms, that may never run again.
torch's CPU kernels compute it in 0.1 ms. Only ops that round at most once run this way, and denormals are flushed as on
the device, so that the bits equal the program's.

Varying traces have the same ops at the same lines but differ each time: an episode's number of steps, a solver's
iterations, a batch in which a tensor occurs twice. Once `Families` has seen several, which have programs, further ones
run here, of any length and any op. They take 10 us per op, where a program takes 5 ms per op. As in the quick tier,
results are equal up to rounding. Traces that vary only in sizes share a bucket's program. They run by it if it exists,
and here until its sizes together have come often enough. For short traces the second one shows that they vary.

A trace that recurs gets its program eventually. `lazytpu.explain()` lists host runs; the first varying trace is
reported on a terminal. A process whose traces are all short, as when trying out ops, always gets programs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from lazytpu.aten.host_arrays import copied, to_numpy
from lazytpu.engine.cutting.families import Families
from lazytpu.engine.cutting.host_records import computable, compute, exact, last_uses, light, numeric, small
from lazytpu.engine.errors.unexpected import attempting
from lazytpu.engine.launching.inflight import Inflight
from lazytpu.engine.launching.padding import known
from lazytpu.engine.recompiles.host_runs import HostLog, HostRuns, program_made
from lazytpu.engine.sizes.templates import Bucket, Sized
from lazytpu.inspection.terminal import say
from lazytpu.options import options
from lazytpu.runtime.buffers.buffer import MEMORY, Buffer, KnownBuffer, Origin
from lazytpu.runtime.xla import client
from lazytpu.trace.extract import Slots
from lazytpu.trace.pending import Trace
from lazytpu.trace.settings import DEFAULT_DTYPE, PRECISION
from lazytpu.trace.trie import CutPlan, Record
from lazytpu.trace.value import Layout

BESIDE = 32
"""Least number of records of the longest trace in a process that does more than try out ops."""
RECORDS = 32
"""Greatest number of records of a short trace."""
OF_A_PARAMETER = 4
"""Records of a step for each parameter of a model: a process with a model on the device does more than try out ops."""
HOST = "the host"
"""The value of `Origin.program` for results of host runs."""
ELEMENTS = 1024
"""Greatest number of elements of a value in a short trace not known to vary. It is `FEW` if all ops are `light` and the
device's memory is the host's."""
ELEMENTS_VARYING = 262_144
"""Greatest number of elements of a value in a varying trace: a layer of 512 x 512."""
ELEMENTS_MOVED = 16_777_216
MOVED = 4_194_304
"""Limits for a varying trace that only moves elements, such as the masks of a batch of requests, if the device's memory
is the host's. A value has at most `ELEMENTS_MOVED` elements; with more than `MOVED` the trace runs on the host less
often."""
RUNS = 100
FEW = 16_384
"""A trace may run `RUNS` times on the host if no value has more than `FEW` elements, less often otherwise. XLA takes
some 500 times as long for an op. The limit is a count rather than a time, so that the next run of a script needs the
same programs."""


@dataclass(slots=True)
class Runs:
    """The remaining number of host runs, which traces of a bucket share."""

    left: int


@dataclass(slots=True, eq=False)
class HostWay:
    """How a trace runs on the host: its records, and the global settings they depend on.

    After `runs` host runs it gets its program. Varying traces share `runs` with their `bucket`, if they have one. The
    trace is short, or one that `varies`. `counted` is its entry in the log after its first run.
    """

    records: list[Record]
    layouts: dict[int, Layout]
    settings: frozenset[tuple[str, str]]
    runs: Runs
    varies: bool
    bucket: Bucket | None = None
    counted: HostRuns | None = None

    @property
    def over(self) -> bool:
        """Whether the trace should have a program, or a program already serves it."""
        return self.runs.left <= 0 or (self.bucket is not None and self.bucket.plan.known)


REFUSED = HostWay([], {}, frozenset(), Runs(0), varies=False)


class OnHost:
    """Runs traces on the host.

    `largest` is the length of the longest trace of this process. `undisturbed` hides ops from the user's modes, `sized`
    returns the bucket of a trace, and `parameters` counts the model parameters on the device.
    """

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
        """Return how a trace runs on the host; None if it should have a program."""
        self.largest = max(self.largest, trace.state.depth)
        if plan.known or plan.checks or plan.collective or options.dump:
            return None
        if self.largest < BESIDE:
            self.largest = max(self.largest, OF_A_PARAMETER * self.parameters())
            if self.largest < BESIDE:
                return None
        if plan.host is None:
            plan.host = self._found(trace)
        host_way: HostWay = plan.host
        if torch.is_autocast_enabled("cpu"):
            return None
        if host_way.over:
            if host_way.counted is not None:
                program_made(host_way.counted, host_way.records)
                plan.host = REFUSED
            return None
        if not host_way.settings <= {(DEFAULT_DTYPE, str(torch.get_default_dtype()))}:
            return None
        if host_way.varies and torch.are_deterministic_algorithms_enabled():  # the same bits in each run
            return None
        return host_way

    def run(self, way: HostWay, plan: CutPlan, trace: Trace, live: Sequence[int]) -> list[Buffer] | None:
        """Compute the slots `live` of a trace and return their buffers.

        Return None if torch refuses; there are then no effects, and the trace gets a program from now on.
        """
        metrics = self.inflight.metrics
        start, waited = time.thread_time(), metrics.wait_ms
        enabled = torch.is_grad_enabled()
        buffers = None
        try:
            with attempting("computing on the host"), self.undisturbed(), _flushing():
                buffers = self._compute(way, plan, trace, live)
        finally:
            torch.set_grad_enabled(enabled)  # an interrupt while entering or leaving no_grad() would leave it off
        if buffers is None:
            plan.host = REFUSED
            return None
        metrics.on_host += 1
        way.runs.left -= 1
        counted = way.counted or self._counted(way)
        counted.runs += 1
        counted.seconds += time.thread_time() - start + 1e-3 * (metrics.wait_ms - waited)
        return buffers

    def numbers(self, plan: CutPlan, trace: Trace, wanted: Sequence[int]) -> list[KnownBuffer] | None:
        """Compute the slots `wanted` of a trace whose values are single elements and whose inputs the host knows.

        Return None unless the bits are the device's.
        """
        if plan.numbers is None:
            records = trace.state.records()
            layouts = Slots(records).layouts
            plan.numbers = (records, layouts) if numeric(records, layouts) else ()
        default_dtype = (DEFAULT_DTYPE, str(torch.get_default_dtype()))
        if not plan.numbers or torch.is_autocast_enabled("cpu"):
            return None
        records, layouts = plan.numbers
        if not _settings(records) <= {default_dtype}:
            return None
        inputs: list[KnownBuffer] = trace.buffers
        flat = {s: copied(b.host, layouts[s].dtype) for s, b in zip(plan.inputs, inputs, strict=True)}
        enabled = torch.is_grad_enabled()
        made_by = None
        try:
            with attempting("computing numbers on the host"), self.undisturbed(), _flushing():
                made_by = _run(records, layouts, flat, trace.numbers, wanted)
        finally:
            torch.set_grad_enabled(enabled)
        if made_by is None:
            return None
        return [known(_array(flat[slot], layouts[slot]), _origin(made_by[slot])) for slot in wanted]

    def _counted(self, way: HostWay) -> HostRuns:
        """Create the log entry of a trace after its first host run."""
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
        """Return how a new trace runs on the host, or `REFUSED`."""
        records = trace.state.records()
        layouts = Slots(records).layouts
        near = client.platform() == "cpu" and all(map(light, records))
        short = len(records) <= RECORDS and all(small(layout, FEW) for layout in layouts.values())
        elements = FEW if near else ELEMENTS
        if short and all(small(layout, elements) for layout in layouts.values()) and exact(records, layouts, elements):
            return HostWay(records, layouts, _settings(records), Runs(RUNS), varies=False)
        if not self.families.vary(records, short):
            return REFUSED
        most, full_runs_limit = (ELEMENTS_MOVED, MOVED) if near else (ELEMENTS_VARYING, FEW)
        possible = all(small(layout, most) for layout in layouts.values())
        if not possible or not all(computable(record, layouts) for record in records):
            return REFUSED
        largest = max(prod(layout.shape) for layout in layouts.values())
        # Drop the precision setting: the host always computes with full precision.
        settings = frozenset((name, value) for name, value in _settings(records) if name != PRECISION)
        runs = Runs(RUNS * full_runs_limit // max(full_runs_limit, largest))
        sized = self.sized(trace)
        if sized is None or sized.bucket.refused:
            return HostWay(records, layouts, settings, runs, varies=True)
        bucket = sized.bucket
        if bucket.on_host is None:
            bucket.on_host = runs
        return HostWay(records, layouts, settings, bucket.on_host, varies=True, bucket=bucket)

    def _compute(self, way: HostWay, plan: CutPlan, trace: Trace, live: Sequence[int]) -> list[Buffer] | None:
        """Return the buffers of the slots `live`; None if an input failed."""
        buffers: list[Buffer] = trace.buffers
        self.inflight.settle_for(buffers, f"{len(way.records):,} ops ran on the host, which read their inputs")
        if any(buffer.error is not None or (buffer.outcome and buffer.outcome.errors) for buffer in buffers):
            return None
        layouts = way.layouts
        flat = {
            slot: copied(buffer.fetch() if buffer.host is None else buffer.host, layouts[slot].dtype)
            for slot, buffer in zip(plan.inputs, buffers, strict=True)
        }
        made_by = _run(way.records, layouts, flat, trace.numbers, live)
        return [_upload(flat[slot], layouts[slot], made_by[slot]) for slot in live]


def _run(
    records: Sequence[Record],
    layouts: dict[int, Layout],
    flat: dict[int, torch.Tensor],
    numbers: Sequence[Any],
    live: Sequence[int],
) -> dict[int, Record]:
    """Compute records, add the slots `live` to `flat`, and return the record that computed each slot."""
    made_by: dict[int, Record] = {}
    for record, over in zip(records, last_uses(records, live), strict=True):
        made_by.update((slot, record) for slot in compute(record, flat, layouts, numbers, over))
    return made_by


def _settings(records: Sequence[Record]) -> frozenset[tuple[str, str]]:
    """Return the global settings on which records depend."""
    return frozenset(setting for record in records for setting in record.settings)


def _upload(flat: torch.Tensor, layout: Layout, record: Record) -> Buffer:
    """Upload a flat host tensor and return its buffer."""
    array = _array(flat, layout)
    MEMORY.note_execution(0, array.nbytes, 0)
    return Buffer(client.to_device(array), array.nbytes, _origin(record))


def _array(flat: torch.Tensor, layout: Layout) -> np.ndarray[Any, Any]:
    """Return the array of a value in memory order."""
    return to_numpy(flat).reshape(layout.memory_shape)


def _origin(record: Record) -> Origin:
    """Return the origin of a record's result that the host computed."""
    return Origin(str(record.op), record.line, HOST)


@contextmanager
def _flushing() -> Iterator[None]:
    """Flush denormals to zero on this thread in the context, as XLA's programs for CPUs and TPUs do. XLA's thread pools
    run in this mode, and a thread that runs a program itself switches to it."""
    smallest = sys.float_info.min
    if client.platform() == "gpu" or smallest / 2 == 0.0:
        yield
        return
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
