"""Execution of a cut: choose a strategy, run it, update the metrics, and raise errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from lazytpu.engine.compiling.compiler import Compiler
from lazytpu.engine.cutting.chooser import Chooser
from lazytpu.engine.cutting.cut import Cut
from lazytpu.engine.cutting.order import Order
from lazytpu.engine.cutting.pieces import groups_of
from lazytpu.engine.cutting.strategies import Strategy
from lazytpu.engine.errors.cuts import failed_cut
from lazytpu.engine.errors.undo import undo
from lazytpu.engine.errors.unexpected import attempting
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.launching.out_of_memory import OutOfMemoryError, of_cut
from lazytpu.engine.memory.alive import MemoryReport
from lazytpu.engine.metrics import Metrics
from lazytpu.interrupts import Interrupted
from lazytpu.runtime.buffers.buffer import MEMORY, ConstantBuffer, KnownBuffer
from lazytpu.trace.eviction import Traces
from lazytpu.trace.pending import Trace
from lazytpu.trace.value import EMPTY


class Cutter:
    """Turns traces into results. `memory` reports live memory for errors; `order` decides when cuts are launched.

    1. After `cut_trace` every live value of the trace has a buffer, which may be deferred. Reading a poisoned one
       raises.
    2. It raises Interrupted only if the cut had no effects, so the trace may be cut again.
    3. After any other error, the inputs that the trace was to overwrite have their old contents if these still exist.
    4. The trace's pins on its inputs are released whether it failed or not.
    """

    def __init__(
        self,
        compiler: Compiler,
        traces: Traces,
        memory: Callable[[], MemoryReport],
        user_line: Callable[[], Any],
        undisturbed: Callable[[], AbstractContextManager[Any]],
        parameter_count: Callable[[], int],
    ):
        self.compiler = compiler
        self.traces = traces
        self.memory = memory
        self.metrics: Metrics = compiler.metrics
        self.inflight = compiler.queue.inflight
        self.chooser = Chooser(compiler, traces, user_line, undisturbed, parameter_count)
        self.order = Order()
        self._waited = 0.0  # metrics.wait_ms at the last cut

    def reset_metrics(self) -> None:
        """Reset the metrics."""
        self.metrics.reset()
        self._waited = 0.0

    def cut_trace(self, trace: Trace) -> None:
        """Compute the live values of a trace.

        Raise Interrupted if an interrupt arrived before the trace had effects; it may then be cut again.
        """
        order = self.order
        order.begin(trace)
        start = time.perf_counter()
        is_new = trace.state.plan is None
        cut = Cut.of(self.traces.ended(trace.state), trace)
        strategy: Strategy | None = None
        try:
            if is_new:
                self.chooser.compiler.sized(trace)  # derives states for other sizes, also of traces without a program
            following = self.chooser.choose(cut, order)
            self._count_trace(trace, start)
            while following is not None:
                strategy = following
                following = order.launch(strategy, cut)
            if strategy is not None:
                self.metrics.ran(strategy.hit, 1e3 * (time.perf_counter() - start))
        except Interrupted:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and (strategy is None or not strategy.launches):
                raise Interrupted from error
            failure = self._failure(cut, strategy, error)
            try:
                raise failure from failure.__cause__
            finally:
                del failure  # its traceback holds this frame, which would hold it
        for buffer in trace.buffers:
            buffer.pins -= 1
        order.end(trace)

    def _count_trace(self, trace: Trace, start: float) -> None:
        """Add the trace's records and recording time, without time spent waiting, to the metrics."""
        metrics = self.metrics
        metrics.records += trace.state.edges
        metrics.trace_ms += max(0.0, 1e3 * (start - trace.begun) - (metrics.wait_ms - self._waited))
        self._waited = metrics.wait_ms

    def _failure(self, cut: Cut, strategy: Strategy | None, error: BaseException) -> BaseException:
        """Return the error to raise for a failed cut, after restoring the state before it."""
        trace = cut.trace
        if cut.plan.collective:
            try:
                self.order.agreement.lost(groups_of(trace.state.records()), error)
            except BaseException as interrupt:  # noqa: BLE001  (of its wait: the state must be restored first)
                error = interrupt
        full = partial(self.exhausted, trace, cut.held, None if strategy is None else strategy.program)
        return failed_cut(error, trace, cut.held, full, self.order.poison)

    def lose_trace(self, trace: Trace, error: BaseException) -> None:
        """Abandon a trace whose inputs failed with `error`. Values it overwrites keep their old contents; reading its
        other results raises `error`."""
        self.order.restore(trace.buffers)
        plan = self.traces.ended(trace.state)
        if plan.collective:
            self.order.agreement.lost(groups_of(trace.state.records()), error)
        alive = [(slot, v) for slot in plan.results if (v := trace.values[slot]()) is not None and v.buffer is None]
        self.order.poison(undo(trace, alive), error)
        for buffer in trace.buffers:
            if buffer is not None and buffer is not EMPTY:
                buffer.pins -= 1

    def constant(self, trace: Trace, slot: int) -> ConstantBuffer | None:
        """Return the constant that a trace computes as `slot`. Return None if that fails, or a check of values does:
        the read then cuts the trace, which raises the error."""
        start = time.perf_counter()
        chooser = self.chooser
        with attempting("computing a constant"):
            plan = self.traces.ended(trace.state)
            host_way = chooser.host_way(plan, trace)
            on_host = None if host_way is None else chooser.on_host.run(host_way, plan, trace, (slot,))
            hit = on_host is not None
            if on_host is not None:
                (buffer,) = on_host
            else:
                program, hit = chooser.compiled(plan, trace, (slot,))
                buffers = program.evaluate(trace.buffers, trace.numbers)
                if buffers is None:
                    return None
                buffer = buffers[program.binding.live.index(slot)]
            constant_buffer = ConstantBuffer(buffer.array, buffer.nbytes, buffer.origin, buffer.fetch().copy())
            self.metrics.ran(hit, 1e3 * (time.perf_counter() - start))
            return constant_buffer
        return None

    def numbers(self, trace: Trace, wanted: Sequence[int]) -> list[KnownBuffer] | None:
        """Return the buffers of the slots `wanted` of a trace of numbers that the host knows, computed there. Return
        None if the host does not compute the same bits."""
        return self.chooser.on_host.numbers(self.traces.ended(trace.state), trace, wanted)

    def exhausted(self, trace: Trace, held: list[tuple[int, Any]], program: Any, error: Any) -> OutOfMemoryError:
        """Return the error of a cut that ran out of memory; `program` is the program of its strategy."""
        MEMORY.exhausted += 1
        compiled = program if isinstance(program, Compiled) else None
        return of_cut(error, trace, held, self.compiler.slot_names(trace.epoch), self.memory(), compiled)
