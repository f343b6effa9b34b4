"""The engine of one device, with the operations that the frontend calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.aten import dtypes, registry
from lazytpu.aten.schema import functional, signature
from lazytpu.engine import meaning
from lazytpu.engine.compiling.compiler import Compiler
from lazytpu.engine.compiling.pass_errors import PASS_ERRORS
from lazytpu.engine.cutting.cutter import Cutter
from lazytpu.engine.device import Device, available, capacity, limit
from lazytpu.engine.errors.unexpected import UNEXPECTED, looking_for
from lazytpu.engine.launching.closing import close_at_exit
from lazytpu.engine.launching.compiled import Queue
from lazytpu.engine.launching.constants import Constants
from lazytpu.engine.launching.inflight import Inflight
from lazytpu.engine.launching.out_of_memory import check_size
from lazytpu.engine.launching.packs import Packs
from lazytpu.engine.launching.watcher import Point
from lazytpu.engine.memory.alive import Amount, MemoryReport, Owners, report
from lazytpu.engine.metrics import Metrics, waited
from lazytpu.engine.programs.target import untunable
from lazytpu.engine.sizes.buckets import OneSize
from lazytpu.engine.trace_cache.digest import canonical
from lazytpu.engine.trace_cache.source_facts import recall_rules, remembered
from lazytpu.engine.transfers import Transfers
from lazytpu.passes.registry import watch
from lazytpu.ports import AtCounts, EnginePort, Inference, OpFacts, Ranges
from lazytpu.runtime.buffers.buffer import MEMORY
from lazytpu.runtime.cache import programs
from lazytpu.runtime.cache.programs import TRAFFIC
from lazytpu.trace.eviction import Traces
from lazytpu.trace.pending import Trace
from lazytpu.trace.trie import CutPlan, Grow, Record, State
from lazytpu.trace.value import Layout


class Engine(EnginePort):
    """Turns traces into results on one device: `cutter` runs traces, `transfers` moves data, `meaning` knows ops. The
    functions in `closing` are called at the end of the process, in order.

    Methods without a docstring are described in `EnginePort`.
    """

    def __init__(
        self,
        slot_names: Callable[[int], dict[int, str]],
        parameter_slots: Callable[[int], frozenset[int]],
        parameter_count: Callable[[], int],
        model_names: Callable[[int], list[str]],
        owners: Owners,
        user_line: Callable[[], Any],
        undisturbed: Callable[[], AbstractContextManager[Any]],
        inference: Inference,
    ):
        recall_rules()
        self.metrics = Metrics()
        self.inflight = Inflight(self.metrics)
        self.packs = Packs()
        queue = Queue(self.inflight, self.packs)
        self.compiler = Compiler(slot_names, parameter_slots, model_names, self.metrics, queue, inference)
        self.traces = Traces()
        self.owners = owners
        self._reported: Mapping[str, Amount] = {}
        self.cutter = cutter = Cutter(self.compiler, self.traces, self.memory, user_line, undisturbed, parameter_count)
        self.background = cutter.chooser.background
        self._answers = Constants(cutter.constant, cutter.numbers, self.metrics.answered)
        watch(self.traces.forget_programs)
        watch(self.compiler.forget_programs)
        watch(self._answers.forget)
        self.transfers = Transfers(self.inflight, self.memory)
        self._device = Device(self.memory, lambda: self.metrics.device_ms)
        MEMORY.limit, MEMORY.available = limit(), available
        ahead = programs.foresee()
        self.closing = [self.inflight.close, self.background.close, *([] if ahead is None else [ahead.close])]
        close_at_exit(self.closing)
        if ahead is not None:
            ahead.begin()

    @property
    def answers(self) -> Constants:
        return self._answers

    @property
    def device(self) -> Device:
        return self._device

    def reset_metrics(self) -> None:
        """Reset the metrics; the peak of memory becomes the live memory."""
        self.cutter.reset_metrics()
        MEMORY.reset_peak()
        TRAFFIC.reset()
        UNEXPECTED.reset()
        PASS_ERRORS.reset()

    def forget_programs(self) -> None:
        """Drop everything that was compiled for the device, or is stored on it for programs, since the device was
        replaced."""
        for job in self.background.unfinished():
            job.done.wait()
        self.traces.forget_programs()
        self.compiler.forget_programs()
        self.compiler.programs.clear()
        self.packs.forget()
        self._answers.forget()
        programs.foresee_again()

    def memory(self, holders: bool = False, earlier: Mapping[str, Amount] = MappingProxyType({})) -> MemoryReport:
        """Return the report of live memory on the device, with the amounts by line `earlier`."""
        programs = list(self.compiler.programs.values())
        code = Amount(sum(program.memory.code for program in programs), len(programs))
        further = {"cached constants": self.packs.kept(), "programs": code}
        return report(self.owners, *capacity(), further, holders, earlier)

    def memory_since(self, holders: bool) -> MemoryReport:
        """Return such a report with the growth since the last call of this function."""
        memory = self.memory(holders, self._reported)
        self._reported = memory.by_line()
        return memory

    # -- the meaning of ops

    def facts(self, op: OpOverload) -> OpFacts:
        return meaning.facts(op)

    def rules(self) -> Collection[str]:
        return registry.facts().keys()

    def counted(self, bounds: Mapping[str, int], at: AtCounts) -> str:
        from lazytpu.engine.sizes.counted import counted  # it imports rules: only if a graph is captured

        refused = "looking for it failed, which is a bug: sharing_errors in lazytpu.metrics()"
        with looking_for("a program of all counts"):
            try:
                return counted(bounds, at)
            except OneSize as error:
                refused = str(error)
        raise ValueError(refused)

    def untunable(self) -> str | None:
        return untunable()

    def remembered(self, name: str, make: Callable[[], list[str]]) -> list[str]:
        return remembered(name, make)

    def functional(self, op: OpOverload) -> OpOverload | None:
        return functional(op) if signature(op).written else None

    def check_dtype(self, dtype: torch.dtype) -> None:
        dtypes.name(dtype)

    def check_size(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        check_size(dtype, shape)

    def check_import(self, state: State) -> None:
        meaning.check_import(state)

    # -- traces

    def text_of(self, records: Sequence[Record]) -> str:
        return canonical(records)

    def plan_of(self, state: State) -> CutPlan:
        return self.traces.ended(state)

    def grows(self, state: State) -> Sequence[Grow]:
        return self.compiler.templates.growth.on_left(state)

    def cut_trace(self, trace: Trace) -> None:
        self.cutter.cut_trace(trace)

    def lose_trace(self, trace: Trace, error: BaseException) -> None:
        self.cutter.lose_trace(trace, error)

    def launched(self) -> int:
        self.cutter.order.drain()
        return self.transfers.launched()

    def wait(self, since: int = 0) -> None:
        self.cutter.order.drain()
        self.transfers.wait(since)

    def point(self) -> Point:
        self.cutter.order.drain()
        return self.inflight.point()

    def time_of(self, point: Point) -> float:
        return self.inflight.wait_for(point)

    def settle_times(self) -> None:
        self.inflight.settle_times()

    def waited(self) -> float:
        return waited()

    def idle(self) -> bool:
        return self.transfers.idle() and not self.cutter.order.is_behind

    # -- data

    def upload(self, flat: torch.Tensor, layout: Layout, line: Any = None, ranges: Ranges | None = None) -> Any:
        return self.transfers.upload(flat, layout, line, ranges)

    def mark(self, buffer: Any, layout: Layout, ranges: Ranges) -> Any:
        return self.transfers.mark(buffer, layout, ranges)

    def download(self, buffer: Any, dtype: torch.dtype) -> torch.Tensor:
        return self.transfers.download(buffer, dtype)

    def number(self, buffer: Any, dtype: torch.dtype, index: int) -> Any:
        return self.transfers.number(buffer, dtype, index)

    def share(self, buffer: Any) -> Any:
        return self.transfers.share(buffer)

    def adopt(self, array: Any, line: Any = None) -> Any:
        return self.transfers.adopt(array, line)

    def fell_back(self) -> None:
        self.metrics.cpu_fallbacks += 1
