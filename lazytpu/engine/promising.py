"""Cuts in a job of several processes. One with collectives waits for the others: it is launched on a thread, in the
order of the cuts, while the script goes on with promised results. Cuts after it wait behind it, or for it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

from lazytpu.engine.cutter import Cutter
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.launching.launcher import Launcher
from lazytpu.engine.launching.pieces import Piece, calls_of, groups_of
from lazytpu.engine.launching.promises import LaunchFailure, PromisedCut, lost_input, with_old_contents
from lazytpu.interrupts import Interrupted, InterruptedAfter
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import CutPlan
from lazytpu.trace.value import Value


class PromisingCutter(Cutter):
    """Takes the place of a `cutter`, whose state it has. What fails on the thread is raised where a result is needed,
    by the next cut with a collective of the same group, and by `finish`."""

    def __init__(self, cutter: Cutter, launcher: Launcher):
        vars(self).update(vars(cutter))
        self.launcher = launcher
        self._failures = weakref.WeakValueDictionary[str, LaunchFailure]()  # the last of each group
        self._has_failed = False

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
        self.inflight.raise_first(self._untold())

    def has_untold(self) -> bool:
        """Whether something failed that nobody has been told of."""
        return bool(self._has_failed and self._untold())

    def _untold(self) -> list[Any]:
        return [each for each in list(self.inflight.errors) if isinstance(each, LaunchFailure) and each.error]

    def cut_trace(self, trace: Trace) -> None:
        """As of any cutter; a trace that needs what has failed fails as well."""
        try:
            if not self.launcher.is_busy or trace.state.collective or self._is_known(trace):
                self.launcher.make_room()
            else:
                self.launcher.drain()
        except BaseException as error:
            raise Interrupted from error
        if self._has_failed:
            failure = lost_input(trace.buffers) or self._of_groups(groups_of(trace.state.records()))
            if failure is not None:
                error = failure.told()
                try:
                    self.lose_trace(trace, error)
                    raise error
                finally:
                    del error  # its traceback holds this frame, which would hold it
        super().cut_trace(trace)
        if trace.left and trace.state.collective:  # the read waits for it, and what it has left is lost if this fails
            try:
                self.launcher.drain()
            except BaseException as error:
                raise InterruptedAfter from error
            values = [value.buffer for each in trace.values if (value := each()) is not None]
            failure = lost_input(values) if self._has_failed else None
            if failure is not None:
                raise failure.told()

    def lose_trace(self, trace: Trace, error: BaseException) -> None:
        """As of any cutter."""
        if self._has_failed:
            with_old_contents(trace.buffers)
        super().lose_trace(trace, error)

    def _is_known(self, trace: Trace) -> bool:
        """Whether a trace has a program that can wait, very likely: else it is better to wait here, where an interrupt
        loses nothing."""
        plan = self.traces.ended(trace.state)
        programs = list(plan.programs.values())
        return plan.sized is None and bool(programs) and all(map(_is_plain, programs)) and _is_asynchronous(trace)

    def _run_in_pieces(
        self, pieces: list[tuple[Piece, Any]], plan: CutPlan, trace: Trace, held: list[tuple[int, Value]]
    ) -> None:
        """As of any cutter. Only what is compiled waits: it is known what it gives."""
        launcher = self.launcher
        with launcher.order:
            if _is_asynchronous(trace) and all(piece.idle or _is_plain(program) for piece, program in pieces):
                turns = self.agreement.post(calls_of([piece for piece, _ in pieces]))

                def launch(trace: Trace, held: list[tuple[int, Value]]) -> None:
                    self.launch_pieces(pieces, plan, trace, held, turns)

                launcher.put(PromisedCut(self, launcher, launch, trace, held))
                return
            self._catch_up(trace)
            super()._run_in_pieces(pieces, plan, trace, held)

    def _run(self, program: Any, trace: Trace, held: list[tuple[int, Value]]) -> None:
        """As of any cutter; behind the cuts that wait, if there are any."""
        launcher = self.launcher
        with launcher.order:
            if launcher.is_busy and _is_asynchronous(trace) and _is_plain(program):
                launcher.put(PromisedCut(self, launcher, partial(super()._run, program), trace, held))
                return
        self._catch_up(trace)
        super()._run(program, trace, held)

    def _run_meanwhile(
        self, job: Any, plan: CutPlan, trace: Trace, held: list[tuple[int, Value]], dead: tuple[int, ...]
    ) -> None:
        """As of any cutter."""
        self._catch_up(trace)
        super()._run_meanwhile(job, plan, trace, held, dead)

    def _catch_up(self, trace: Trace) -> None:
        """Wait for the cuts before a trace, of which nothing has run. Raises what failed there and is needed here; then
        the trace has the old contents of what it would have overwritten."""
        try:
            self.launcher.drain()
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
            failure = self._of_groups(groups)
            if failure is None:
                errors = self.inflight.errors
                failure = LaunchFailure(explained, self.inflight.launched + 1, errors)
                errors.append(failure)
        self._failures.update(dict.fromkeys(groups, failure))
        self._has_failed = True
        return failure

    def _of_groups(self, groups: Mapping[str, Any]) -> LaunchFailure | None:
        """A failure in one of these groups that nobody has been told of."""
        failures = [self._failures.get(group) for group in groups]
        return next((each for each in failures if each is not None and each.error is not None), None)


def _is_asynchronous(trace: Trace) -> bool:
    return trace.mode not in ("strict", "debug")


def _is_plain(program: Any) -> bool:
    """Whether this is a compiled program whose results are plain buffers."""
    if type(program) is not Compiled:
        return False
    layouts = program.program.layouts
    return layouts is None or not any(layouts.results)
