"""Cuts in a job of several processes. One with collectives waits for the others: it is launched on a thread, in the
order of the cuts, while the script goes on with promised results. Cuts after it wait behind it, or for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from lazytpu.engine.compiling.jobs import Job
from lazytpu.engine.cutting.cutter import Cutter
from lazytpu.engine.cutting.launcher import Launcher
from lazytpu.engine.cutting.on_copies import OnCopies
from lazytpu.engine.cutting.pieces import Piece, Turn, calls_of, groups_of
from lazytpu.engine.cutting.promises import LaunchFailure, PromisedCut, lost_input, with_old_contents
from lazytpu.engine.cutting.stepwise import NAMELESS
from lazytpu.engine.errors.undo import Lost
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.interrupts import Interrupted, InterruptedAfter
from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.buffers.copies import copies_of
from lazytpu.runtime.buffers.promised import PromisedBuffer, failure_of, is_waiting
from lazytpu.trace.extract import Extracted
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import CutPlan
from lazytpu.trace.value import Value, again


class PromisingCutter(Cutter):
    """Takes the place of a `cutter`, whose state it has. What fails on the thread is raised where a result is needed,
    by the next cut with a collective of the same group, and by `finish`."""

    def __init__(self, cutter: Cutter, launcher: Launcher):
        vars(self).update(vars(cutter))
        self.launcher = launcher
        self._failures: dict[str, LaunchFailure] = {}  # the last of each group, of those that cuts may be part of
        self._has_failed = False
        self._of_others: list[LaunchFailure] = []  # failures of what was cut for other processes
        self._serving = threading.local()

    @property
    def is_behind(self) -> bool:
        """As of any cutter."""
        return self.launcher.is_busy

    def drain(self) -> None:
        """As of any cutter."""
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

    def cut_trace(self, trace: Trace) -> None:
        """As of any cutter; a trace that needs what has failed fails as well."""
        if trace.state.collective or self.awaits(trace):
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
                    self.lose_trace(trace, error)
                    raise error
                finally:
                    del error  # its traceback holds this frame, which would hold it
            self._raise_of_others()
        super().cut_trace(trace)
        if trace.read is not None and trace.state.collective:
            self._await_read(trace.values[trace.read]())

    def _await_read(self, value: Value | None) -> None:
        """Wait for the value of a read, which has left the rest of its trace: that is lost if this fails."""
        buffer = None if value is None else value.buffer
        if type(buffer) is PromisedBuffer and is_waiting(buffer):
            try:
                self.launcher.wait_for(buffer)
            except BaseException as error:
                raise InterruptedAfter from error
        failure = failure_of(buffer)
        if failure is not None:
            raise failure.told()

    def lose_trace(self, trace: Trace, error: BaseException) -> None:
        """As of any cutter."""
        if self._has_failed:
            with_old_contents(trace.buffers)
        super().lose_trace(trace, error)

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

    def spoil(self, lost: Lost, error: BaseException) -> None:
        """As of any cutter."""
        if not getattr(self._serving, "now", False):
            super().spoil(lost, error)
            return
        failure = self._of_another(error)
        for value in lost.values:
            value.buffer = promised = PromisedBuffer(self.launcher)
            promised.fail(failure)
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
        """As of any cutter."""
        return self.launcher.is_busy and any(
            type(buffer) is PromisedBuffer and is_waiting(buffer) for buffer in trace.buffers
        )

    def _run_in_pieces(
        self, pieces: list[tuple[Piece, Any]], plan: CutPlan, trace: Trace, held: list[tuple[int, Value]]
    ) -> None:
        """As of any cutter."""
        launcher = self.launcher
        with launcher.order:
            programs = [program for piece, program in pieces if not piece.idle]
            if self._goes_on(trace, programs):
                turns = self.agreement.post(calls_of([piece for piece, _ in pieces]))

                def launch(trace: Trace, held: list[tuple[int, Value]], buffers: dict[int, Any]) -> None:
                    self.launch_pieces(pieces, trace, held, buffers, turns)

                launcher.put(PromisedCut(self, launcher, launch, plan, trace, held, turns))
                return
            self._catch_up(trace, launcher.drain)
            super()._run_in_pieces(pieces, plan, trace, held)

    def _run(self, program: Any, trace: Trace, held: list[tuple[int, Value]]) -> None:
        """As of any cutter. What needs a result of a cut that waits is launched behind it, and everything else at once:
        this process may do it before it lets the others come."""
        if not self.launcher.is_own_thread:
            run = super()._run

            def launch(trace: Trace, held: list[tuple[int, Value]], buffers: dict[int, Any]) -> None:
                run(program, trace, held)

            if self._waits(program, trace, held, launch):
                return
            kept = self._kept_inputs(trace, program.binding.donated)
            if kept:
                copies = copies_of([trace.buffers[i] for i in kept])
                program = OnCopies(program, dict(zip(kept, copies, strict=True)))
        super()._run(program, trace, held)

    def _run_meanwhile(
        self, job: Any, plan: CutPlan, trace: Trace, held: list[tuple[int, Value]], dead: tuple[int, ...]
    ) -> None:
        """As of any cutter. A program that has been compiled by the time it is launched is launched itself."""
        if self.launcher.is_own_thread:
            done = isinstance(job, Job) and job.compiled
            if done:
                super()._run(done, trace, held)
                return
        else:

            def launch(trace: Trace, held: list[tuple[int, Value]], buffers: dict[int, Any]) -> None:
                self._run_meanwhile(job, plan, trace, held, dead)

            if self._waits(job, trace, held, launch):
                return
            kept = self._kept_inputs(trace, dead)
            dead = tuple([i for i in dead if i not in kept])
        super()._run_meanwhile(job, plan, trace, held, dead)

    def _waits(
        self,
        program: Any,
        trace: Trace,
        held: list[tuple[int, Value]],
        launch: Callable[[Trace, Any, dict[int, Any]], None],
    ) -> bool:
        """Whether a trace is launched later, as it needs results of cuts that wait. Otherwise it has all its inputs."""
        if not self.awaits(trace):
            return False
        launcher = self.launcher
        with launcher.order:
            if self._goes_on(trace, [program]):
                plan = trace.state.plan or CutPlan.of(trace.state)
                launcher.put(PromisedCut(self, launcher, launch, plan, trace, held))
                return True
        self._catch_up(trace, partial(self._wait_for_inputs, trace))
        return False

    def _goes_on(self, trace: Trace, programs: Iterable[Any]) -> bool:
        """Whether the script goes on before a trace is launched. Not in debug mode, nor in strict mode where a check
        may fail, at the line where the script is. Results that are copied, to be promised, are no reason where the
        script has to wait for what it has not waited for yet."""
        if trace.mode == "debug" or (trace.mode == "strict" and any(each.binding.checks for each in programs)):
            return False
        if all(map(_can_wait, programs)):
            return True
        groups = groups_of(trace.state.records()) if trace.state.collective else ()
        waited = self.agreement.is_awaited(groups) and all(cut.is_awaited() for cut in self.launcher.cuts())
        return not waited

    def _wait_for_inputs(self, trace: Trace) -> None:
        for buffer in trace.buffers:
            if type(buffer) is PromisedBuffer and is_waiting(buffer):
                self.launcher.wait_for(buffer)

    def _launch_in_turn(self, turn: Turn, program: Compiled, trace: Trace) -> tuple[list[Any], Any]:
        """As of any cutter. Meanwhile others may launch ahead what needs no collective: it takes no memory of that."""
        with self.launcher.away() if self.launcher.is_own_thread else nullcontext():
            return super()._launch_in_turn(turn, program, trace)

    def compute(self, trace: Trace, slot: int, part: Extracted, inputs: list[Any]) -> Buffer | None:
        """As of what cuts."""
        numbers = [trace.numbers[i] for i in part.numbers]
        own = Trace(part.state, NAMELESS, inputs, numbers, [], trace.begun, trace.mode)
        start = time.perf_counter()
        try:
            program, hit = self._compiled(self.traces.ended(part.state), own, (part.slots[slot],))
            made = self._launch(program, own)
        except Exception:  # noqa: BLE001  (whatever it is: the cut itself meets it again, and notes it in full)
            return None
        self.metrics.ran(hit, 1e3 * (time.perf_counter() - start))
        return made[program.binding.live.index(part.slots[slot])]

    def _kept_inputs(self, trace: Trace, taken: Iterable[int]) -> list[int]:
        """Which of some inputs, whose memory a trace would take, cuts that wait need as well."""
        cuts = self.launcher.cuts()
        needed = {id(buffer) for cut in cuts for buffer in cut.inputs()} if cuts else ()
        return [i for i in taken if id(trace.buffers[i]) in needed]

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

    def failed(self, cut: PromisedCut, reason: BaseException | LaunchFailure) -> LaunchFailure:
        """A cut that waited has failed, by itself or since an input failed before: the failure that it is part of."""
        groups = groups_of(cut.trace.state.records())
        failure = reason if isinstance(reason, LaunchFailure) else None
        error = reason.reason if isinstance(reason, LaunchFailure) else reason
        self.agreement.lost(groups, error)
        if failure is None:
            explained = cut.explained(error, partial(self._exhausted, cut.trace, cut.held, None))
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
    """Whether a program gives plain buffers, which can be promised; others would be copied."""
    if type(program) is not Compiled:
        return isinstance(program, Job)
    layouts = program.program.layouts
    return layouts is None or not any(layouts.results)
