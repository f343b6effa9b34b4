"""Deferred launches, in a job of several processes. A cut with collectives waits for the others: a thread launches it,
in the order of the cuts, while the script goes on with deferred buffers. Cuts after it wait behind it, or for it."""

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
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.interrupts import Interrupted, InterruptedAfter
from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.buffers.deferred import DeferredBuffer, failure_of, is_waiting
from lazytpu.trace.extract import Extracted
from lazytpu.trace.recorder import Trace
from lazytpu.trace.value import Value, again


class Deferral(Order):
    """The order of launches of a `cutter`. What fails on the thread is raised where a result is needed, by the next cut
    with a collective of the same group, and by `finish`.

    1. The thread launches deferred cuts one at a time, in the order in which they were cut.
    2. A cut with collectives keeps that order: it is deferred, or launched when all before it are.
    3. A cut that needs results of deferred ones is deferred behind them, or launched when it has these inputs.
    4. Any other cut is launched at once, and takes no memory that a deferred one needs.
    """

    def __init__(self, cutter: Cutter, launcher: Launcher):
        super().__init__()
        self.cutter = cutter
        self.inflight = cutter.inflight
        self.launcher = launcher
        self._failures: dict[str, LaunchFailure] = {}  # the last of each group, of those that cuts may be part of
        self._has_failed = False
        self._of_others: list[LaunchFailure] = []  # failures of what was cut for other processes
        self._serving = threading.local()

    @property
    def is_behind(self) -> bool:
        return self.launcher.is_busy

    def drain(self) -> None:
        self.launcher.drain()

    def finish(self) -> None:
        """Wait until everything cut is launched, and raise what failed, if nobody has been told."""
        self.launcher.drain()
        self.raise_untold()

    def raise_untold(self) -> None:
        """Raise what failed, if nobody has been told."""
        self.inflight.raise_first(self._untold())

    def has_untold(self) -> bool:
        """Whether something failed that nobody has been told of."""
        return bool(self._has_failed and self._untold())

    def _untold(self) -> list[Any]:
        return [each for each in list(self.inflight.errors) if isinstance(each, LaunchFailure) and each.error]

    def begin(self, trace: Trace) -> None:
        """Wait until there is room for a cut that may be deferred. A trace that needs what has failed fails as well."""
        if trace.state.traits.collective or self.awaits(trace):
            try:
                self.launcher.make_room()
            except BaseException as error:
                raise Interrupted from error
        if self._has_failed:
            if not self.launcher.is_busy:  # what was cut before they were told is launched, or part of them
                self._failures = {group: each for group, each in self._failures.items() if each.error is not None}
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
        """Wait for the value of a read, which has left the rest of its trace: that is lost if this fails."""
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
        """What is cut meanwhile on this thread is cut for other processes: if it fails, the script is told, as of what
        fails on the launcher's thread, or else before it cuts something else, of which nothing is lost."""
        self._serving.now, self._serving.noted = True, False
        try:
            yield
        except Exception as error:
            if not self._serving.noted:  # it has failed before it began
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
        """A trace that was cut for others has failed, of which nobody has been told."""
        failure = LaunchFailure(again(error), self.inflight.launched + 1, self.inflight.errors, self.launcher)
        self._serving.noted = True
        self._of_others.append(failure)
        self._note(failure)
        return failure

    def _raise_of_others(self) -> None:
        """Raise what failed in a trace that was cut for others. Whoever cuts now loses nothing."""
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
            needed = {id(buffer) for each in cuts for buffer in each.inputs()}
            cut.kept = [i for i in cut.dead if id(trace.buffers[i]) in needed]
            cut.dead = tuple([i for i in cut.dead if i not in cut.kept])
        return strategy.run(cut)

    def _defers(self, strategy: Strategy, cut: Cut) -> bool:
        """Whether a cut is launched later, while the script goes on. Not in debug mode, nor in strict mode where a
        check may fail, at the line where the script is. Results that are copied into deferred buffers are no reason
        where the script has to wait for what it has not waited for yet."""
        mode = cut.trace.mode
        if mode == "debug" or (mode == "strict" and any(each.binding.checks for each in strategy.programs)):
            return False
        if not all(map(_can_wait, strategy.programs)):
            groups = groups_of(cut.trace.state.records()) if strategy.collective else ()
            if self.agreement.is_awaited(groups) and all(each.is_awaited() for each in self.launcher.cuts()):
                return False
        turns = strategy.defer(self.launcher.away)
        self.launcher.put(DeferredCut(self.failed, self.compute, self.launcher, strategy, cut, turns))
        return True

    def _wait_for_inputs(self, trace: Trace) -> None:
        for buffer in trace.buffers:
            if type(buffer) is DeferredBuffer and is_waiting(buffer):
                self.launcher.wait_for(buffer)

    def compute(self, trace: Trace, slot: int, part: Extracted, inputs: dict[int, Any]) -> Buffer | None:
        """Launch the part of a trace that computes a slot, on the buffers by slot of its `inputs`. None when that
        fails."""
        own, chooser = part_of(trace, part, inputs), self.cutter.chooser
        start = time.perf_counter()
        try:
            plan, slots, result = self.cutter.traces.ended(part.state), (part.slots[slot],), Result()
            program, hit = chooser.compiled(plan, own, slots)
            chooser.launch(program, own).run(Cut(plan, own, [(slots[0], result)], slots, ()))
        except Exception:  # noqa: BLE001  (whatever it is: the cut itself meets it again, and notes it in full)
            return None
        self.cutter.metrics.ran(hit, 1e3 * (time.perf_counter() - start))
        return result.buffer

    def _catch_up(self, trace: Trace, wait: Callable[[], None]) -> None:
        """`wait` for the cuts before a trace, of which nothing has run. Raises what failed there and is needed here;
        then the trace has the old contents of what it would have overwritten."""
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
        """A cut that waited has failed, by itself or since an input failed before: the failure that it is part of."""
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
        """Nobody has been told of a failure."""
        self._has_failed = True
        self.inflight.errors.append(failure)

    def _of_groups(self, groups: Iterable[str], number: float) -> LaunchFailure | None:
        """A failure in one of these groups that nobody had been told of before that cut."""
        failures = [self._failures.get(group) for group in groups]
        return next((each for each in failures if each is not None and number < each.until), None)


def _can_wait(program: Any) -> bool:
    """Whether a program gives plain buffers, which may be deferred; others would be copied."""
    if type(program) is not Compiled:
        return isinstance(program, Job)
    layouts = program.program.layouts
    return layouts is None or not any(layouts.results)
