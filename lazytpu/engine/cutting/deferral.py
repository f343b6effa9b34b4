"""Deferred launches in a job of several processes. A cut with collectives waits for the other ranks: a thread launches
it, in the order of the cuts, while the script continues with deferred buffers. Later cuts are deferred too, or wait for
it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from lazytpu.engine.compiling.jobs import Job
from lazytpu.engine.cutting.cut import Cut, part_of
from lazytpu.engine.cutting.cutter import Cutter
from lazytpu.engine.cutting.deferred_cut import DeferredCut, LaunchFailure, lost_input, with_old_contents
from lazytpu.engine.cutting.launcher import Launcher
from lazytpu.engine.cutting.order import Order
from lazytpu.engine.cutting.pieces import Result, groups_of
from lazytpu.engine.cutting.strategies import Strategy
from lazytpu.engine.errors.undo import Lost
from lazytpu.engine.errors.unexpected import attempting
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.interrupts import Interrupted, InterruptedAfter
from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.buffers.deferred import DeferredBuffer, failure_of, is_waiting
from lazytpu.trace.extract import Extracted
from lazytpu.trace.pending import Trace
from lazytpu.trace.value import Value, again


class Deferral(Order):
    """The launch order of a `cutter`'s cuts in a job of several processes.

    An error on the launching thread is raised where a result is needed. It is also raised by the next cut with a
    collective of the same group, and by `finish`.

    1. The thread launches deferred cuts one at a time, in the order in which they were cut.
    2. A cut with collectives keeps that order: it is deferred, or launched after all earlier cuts.
    3. A cut that needs results of deferred cuts is deferred, or launched once these inputs are ready.
    4. Any other cut is launched at once, and donates no buffer that a deferred cut needs.
    """

    def __init__(self, cutter: Cutter, launcher: Launcher):
        super().__init__()
        self.cutter = cutter
        self.inflight = cutter.inflight
        self.launcher = launcher
        self._failures: dict[str, LaunchFailure] = {}  # group -> the last failure that its cuts may belong to
        self._has_failed = False
        self._of_others: list[LaunchFailure] = []  # failures of cuts made to serve other ranks
        self._serving = threading.local()

    @property
    def is_behind(self) -> bool:
        return self.launcher.is_busy

    def drain(self) -> None:
        self.launcher.drain()

    def finish(self) -> None:
        """Wait until all cuts are launched, and raise the first error that was not reported yet."""
        self.launcher.drain()
        self.raise_untold()

    def raise_untold(self) -> None:
        """Raise the first error that was not reported yet, if any."""
        self.inflight.raise_first(self._untold())

    def has_untold(self) -> bool:
        """Return whether there is an error that was not reported yet."""
        return bool(self._has_failed and self._untold())

    def _untold(self) -> list[Any]:
        """Return the launch failures that were not reported yet."""
        return [error for error in list(self.inflight.errors) if isinstance(error, LaunchFailure) and error.error]

    def begin(self, trace: Trace) -> None:
        """Wait until there is room for a cut that may be deferred. Raise the error of a failed input or collective
        group, after abandoning the trace."""
        if trace.state.traits.collective or self.awaits(trace):
            try:
                self.launcher.make_room()
            except BaseException as error:
                raise Interrupted from error
        if self._has_failed:
            if not self.launcher.is_busy:  # all cuts made before the report are launched or have failed
                self._failures = {
                    group: known_failure
                    for group, known_failure in self._failures.items()
                    if known_failure.error is not None
                }
            groups = groups_of(trace.state.records())
            failure = lost_input(trace.buffers) or self._of_groups(groups, self.launcher.count)
            if failure is not None:
                error = failure.told()
                try:
                    self.cutter.lose_trace(trace, error)
                    raise error
                finally:
                    del error  # its traceback holds this frame, which would hold it
            self._raise_of_others()

    def end(self, trace: Trace) -> None:
        if trace.read is not None and trace.state.traits.collective:
            self._await_read(trace.values[trace.read]())

    def _await_read(self, value: Value | None) -> None:
        """Wait for the value of a read, which left the rest of its trace pending. If the value failed, raise its error;
        the rest is lost then."""
        buffer = None if value is None else value.buffer
        if type(buffer) is DeferredBuffer and is_waiting(buffer):
            try:
                self.launcher.wait_for(buffer)
            except BaseException as error:
                raise InterruptedAfter from error
        failure = failure_of(buffer)
        if failure is not None:
            raise failure.told()

    def restore(self, buffers: list[Any]) -> None:
        if self._has_failed:
            with_old_contents(buffers)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Mark cuts made on this thread in the context as made to serve other ranks.

        If one fails, the error is reported to the script like an error of the launching thread. At the latest, this
        happens before the next cut, which loses nothing.
        """
        self._serving.now, self._serving.noted = True, False
        try:
            yield
        except Exception as error:
            if not self._serving.noted:  # the error precedes the cut
                self._of_another(error)
            raise
        finally:
            self._serving.now = False

    def poison(self, lost: Lost, error: BaseException) -> None:
        if not getattr(self._serving, "now", False):
            super().poison(lost, error)
            return
        failure = self._of_another(error)
        for value in lost.values:
            value.buffer = deferred = DeferredBuffer(self.launcher)
            deferred.fail(failure)
        for buffer in lost.inputs:
            buffer.error = again(error)

    def _of_another(self, error: BaseException) -> LaunchFailure:
        """Register the failure of a trace that was cut to serve other ranks, and return it. It was not reported yet."""
        failure = LaunchFailure(again(error), self.inflight.launched + 1, self.inflight.errors, self.launcher)
        self._serving.noted = True
        self._of_others.append(failure)
        self._note(failure)
        return failure

    def _raise_of_others(self) -> None:
        """Raise the failure of a trace that was cut to serve other ranks, as Interrupted: the current cut loses
        nothing."""
        while self._of_others:
            failure = self._of_others.pop()
            if failure.error is not None:
                raise Interrupted from failure.told()

    def awaits(self, trace: Trace) -> bool:
        return self.launcher.is_busy and any(
            type(buffer) is DeferredBuffer and is_waiting(buffer) for buffer in trace.buffers
        )

    def launch(self, strategy: Strategy, cut: Cut) -> Strategy | None:
        trace = cut.trace
        if strategy.collective:
            with self.launcher.order:
                if self._defers(strategy, cut):
                    return None
                self._catch_up(trace, self.launcher.drain)
                return strategy.run(cut)
        if self.awaits(trace):
            with self.launcher.order:
                if self._defers(strategy, cut):
                    return None
            self._catch_up(trace, partial(self._wait_for_inputs, trace))
        if cuts := self.launcher.cuts():
            needed = {id(buffer) for deferred in cuts for buffer in deferred.inputs()}
            cut.kept = [i for i in cut.dead if id(trace.buffers[i]) in needed]
            cut.dead = tuple([i for i in cut.dead if i not in cut.kept])
        return strategy.run(cut)

    def _defers(self, strategy: Strategy, cut: Cut) -> bool:
        """Defer a cut if possible, and return whether it was.

        A cut is not deferred in debug mode, nor in strict mode if it has checks, since these must fail at the current
        line. Results that must be copied into deferred buffers are deferred only if the script has yet to wait for some
        collective.
        """
        mode = cut.trace.mode
        if mode == "debug" or (mode == "strict" and any(item.binding.checks for item in strategy.programs)):
            return False
        if not all(map(_can_wait, strategy.programs)):
            groups = groups_of(cut.trace.state.records()) if strategy.collective else ()
            if self.agreement.is_awaited(groups) and all(item.is_awaited() for item in self.launcher.cuts()):
                return False
        turns = strategy.defer(self.launcher.away)
        self.launcher.put(DeferredCut(self.failed, self.compute, self.launcher, strategy, cut, turns))
        return True

    def _wait_for_inputs(self, trace: Trace) -> None:
        """Wait until the deferred inputs of a trace are ready or have failed."""
        for buffer in trace.buffers:
            if type(buffer) is DeferredBuffer and is_waiting(buffer):
                self.launcher.wait_for(buffer)

    def compute(self, trace: Trace, slot: int, part: Extracted, inputs: dict[int, Any]) -> Buffer | None:
        """Launch the part of a trace that computes a slot, with `inputs` by slot. Return its buffer, or None if the
        launch fails."""
        part_trace, chooser = part_of(trace, part, inputs), self.cutter.chooser
        start = time.perf_counter()
        with attempting("launching a part of a deferred cut"):  # the cut itself meets an error again, and records it
            plan, slots, result = self.cutter.traces.ended(part.state), (part.slots[slot],), Result()
            program, hit = chooser.compiled(plan, part_trace, slots)
            chooser.launch(program, part_trace).run(Cut(plan, part_trace, [(slots[0], result)], slots, ()))
            self.cutter.metrics.ran(hit, 1e3 * (time.perf_counter() - start))
            return result.buffer
        return None

    def _catch_up(self, trace: Trace, wait: Callable[[], None]) -> None:
        """Call `wait` to wait for the cuts that must precede a trace, which has no effects yet.

        Raise the error of a failed input. The trace's buffers then have their contents before the failed cut.
        """
        try:
            wait()
        except BaseException as error:
            raise Interrupted from error
        failure = lost_input(trace.buffers) if self._has_failed else None
        if failure is not None:
            error = failure.told()
            with_old_contents(trace.buffers)
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, which would hold it

    def failed(self, cut: DeferredCut, reason: BaseException | LaunchFailure) -> LaunchFailure:
        """Return the failure that a deferred cut belongs to. It failed by itself (`reason` is an error) or through an
        input (`reason` is that input's failure)."""
        groups = groups_of(cut.trace.state.records())
        failure = reason if isinstance(reason, LaunchFailure) else None
        error = reason.reason if isinstance(reason, LaunchFailure) else reason
        self.agreement.lost(groups, error)
        if failure is None:
            explained = cut.explained(error, partial(self.cutter.exhausted, cut.trace, cut.cut.held, None))
            failure = self._of_groups(groups, cut.number)
            if failure is None:
                failure = LaunchFailure(explained, self.inflight.launched + 1, self.inflight.errors, self.launcher)
                self._note(failure)
        self._failures.update(dict.fromkeys(groups, failure))
        return failure

    def _note(self, failure: LaunchFailure) -> None:
        """Register a failure that was not reported yet."""
        self._has_failed = True
        self.inflight.errors.append(failure)

    def _of_groups(self, groups: Iterable[str], number: float) -> LaunchFailure | None:
        """Return a failure in one of these groups that was not yet reported when cut `number` was made, or None."""
        failures = [self._failures.get(group) for group in groups]
        return next(
            (group_failure for group_failure in failures if group_failure is not None and number < group_failure.until),
            None,
        )


def _can_wait(program: Any) -> bool:
    """Return whether a program's results are plain buffers, which can be deferred. Others would have to be copied."""
    if type(program) is not Compiled:
        return isinstance(program, Job)
    layouts = program.program.layouts
    return layouts is None or not any(layouts.results)
