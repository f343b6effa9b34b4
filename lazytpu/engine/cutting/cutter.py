"""What a cut does: choose the program of a trace, compiling it if there is none, and launch it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from lazytpu.engine.compiling.background import Background
from lazytpu.engine.compiling.choice import Unknown
from lazytpu.engine.compiling.compiler import Compiler, Prepared
from lazytpu.engine.compiling.for_sizes import ForSizes, JobAtSizes
from lazytpu.engine.compiling.jobs import Job
from lazytpu.engine.cutting.on_copies import OnCopies, on_copies
from lazytpu.engine.cutting.on_host import OnHost
from lazytpu.engine.cutting.pieces import Agreement, Alone, Piece, Turn, calls_of, groups_of, pieces_of
from lazytpu.engine.cutting.stepwise import NAMELESS, Stepwise
from lazytpu.engine.errors.cuts import failed_cut
from lazytpu.engine.errors.undo import Lost, undo
from lazytpu.engine.launching.compiled import Compiled, fitting
from lazytpu.engine.launching.out_of_memory import OutOfMemoryError, of_cut
from lazytpu.engine.launching.sized import AtSizes
from lazytpu.engine.memory.alive import MemoryReport
from lazytpu.engine.metrics import Metrics
from lazytpu.interrupts import Interrupted
from lazytpu.options import options
from lazytpu.runtime.buffers.buffer import MEMORY, Buffer, ConstantBuffer
from lazytpu.runtime.errors import OutOfMemory
from lazytpu.trace.eviction import Traces
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import CutPlan
from lazytpu.trace.value import EMPTY, Value, again

JOBS = (Job, JobAtSizes)


class Cutter:
    """Turns traces into results. `memory` reports what is alive, for errors; `user_line` is the line of the user's
    script that runs now. `agreement` is how collectives wait for the other processes. `is_behind` says whether cuts
    wait to be launched; see `PromisingCutter`."""

    is_behind = False

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
        self.metrics: Metrics = compiler.metrics
        self.inflight = compiler.queue.inflight
        self.background = Background(compiler.build, compiler.quick, compiler.parts, compiler.costs, compiler.leave)
        self.for_sizes = ForSizes(compiler, self.background)
        self.on_host = OnHost(self.inflight, undisturbed, compiler.sized, parameter_count)
        self.stepwise = Stepwise(compiler.prepare, compiler.build, self.inflight.keep_up)
        self.memory = memory
        self.user_line = user_line
        self.agreement: Agreement = Alone()
        self._waited = 0.0  # metrics.wait_ms at the last cut

    def reset_metrics(self) -> None:
        """Start counting anew."""
        self.metrics.reset()
        self._waited = 0.0

    def drain(self) -> None:
        """Wait until everything cut is launched, or has failed."""

    def awaits(self, trace: Trace) -> bool:
        """Whether inputs of a trace are results of cuts that wait to be launched."""
        return False

    def cut_trace(self, trace: Trace) -> None:
        """Run the program that computes what is alive of a trace, compiling it if there is none.

        Raises Interrupted when an interrupt came before it ran: nothing has happened then, and it may be cut again.
        """
        start = time.perf_counter()
        state = trace.state
        plan = self.traces.ended(state)
        held = [(slot, v) for slot in plan.results if (v := trace.values[slot]()) is not None]
        live = tuple([slot for slot, _ in held])
        v = None
        dead = tuple(
            [i for i, slot in enumerate(plan.inputs) if trace.values[slot]() is None and trace.buffers[i].pins == 1]
        )
        metrics = self.metrics
        needed = live or (plan.checks and options.bounds_check)
        program: Any = None
        try:
            if plan.sized is not None:
                self.for_sizes.look_at(plan, trace, live, dead)
            if needed:
                program = plan.programs.get((live, dead))
            hit = program is not None
            if plan.collective:
                program, hit = self._pieces(plan, trace, live, dead)
            elif needed and program is None:
                is_there = not self.awaits(trace)
                if is_there and (made := self._made_on_host(plan, trace, live)) is not None:
                    hit = True
                    for (_, value), buffer in zip(held, made, strict=True):
                        value.buffer = buffer
                elif is_there and (copying := on_copies(plan, trace, live, dead)) is not None:
                    program, hit = copying, True
                else:
                    program, hit = self._select(plan, trace, live, dead)
            metrics.records += state.edges
            metrics.trace_ms += max(0.0, 1e3 * (start - trace.begun) - (metrics.wait_ms - self._waited))
            self._waited = metrics.wait_ms
            if program is not None:
                if plan.collective:
                    self._run_in_pieces(program, plan, trace, held)
                elif isinstance(program, JOBS):
                    self._run_meanwhile(program, plan, trace, held, dead)
                else:
                    try:
                        self._run(program, trace, held)
                    except OutOfMemory as error:
                        if not isinstance(program, AtSizes) or error.lost != ():
                            raise
                        full = error.reason
                    else:
                        full = None
                    if full is not None:  # its sizes may need less
                        program = self.for_sizes.instead(full, plan, trace, live, dead)
                        self._run(program, trace, held)
            if program is not None or hit:
                metrics.ran(hit, 1e3 * (time.perf_counter() - start))
        except Interrupted:
            raise
        except BaseException as error:
            if program is None and not isinstance(error, Exception):
                raise Interrupted from error
            if plan.collective:
                try:
                    self.agreement.lost(groups_of(state.records()), error)
                except BaseException as interrupt:  # noqa: BLE001  (of its wait: what is below has to be done first)
                    error = interrupt
            full = partial(self._exhausted, trace, held, program)
            failure = failed_cut(error, trace, held, full, self.spoil)
            try:
                raise failure from failure.__cause__
            finally:
                del failure  # its traceback holds this frame, which would hold it
        for buffer in trace.buffers:
            buffer.pins -= 1

    def lose_trace(self, trace: Trace, error: BaseException) -> None:
        """A trace cannot run, since what it depends on failed with `error`: its live values are again what they were
        before it, and reads of what it would have made raise `error`."""
        plan = self.traces.ended(trace.state)
        if plan.collective:
            self.agreement.lost(groups_of(trace.state.records()), error)
        alive = [(slot, v) for slot in plan.results if (v := trace.values[slot]()) is not None and v.buffer is None]
        self.spoil(undo(trace, alive), error)
        for buffer in trace.buffers:
            if buffer is not None and buffer is not EMPTY:
                buffer.pins -= 1

    def spoil(self, lost: Lost, error: BaseException) -> None:
        """Let every read of what a trace has lost raise `error` again."""
        lost.spoil(error)

    def constant(self, trace: Trace, slot: int) -> ConstantBuffer | None:
        """The constant that a trace computes as `slot`. None when that fails, or a check of values does: the read cuts
        then, and raises it."""
        start = time.perf_counter()
        try:
            plan = self.traces.ended(trace.state)
            on_host = self._made_on_host(plan, trace, (slot,))
            hit = on_host is not None
            if on_host is not None:
                (buffer,) = on_host
            else:
                program, hit = self._compiled(plan, trace, (slot,))
                buffers = program.evaluate(trace.buffers, trace.numbers)
                if buffers is None:
                    return None
                buffer = buffers[program.binding.live.index(slot)]
            known = ConstantBuffer(buffer.array, buffer.nbytes, buffer.origin, buffer.fetch().copy())
        except Exception:  # noqa: BLE001  (whatever it is: the read that cuts meets it again, and raises it in full)
            return None
        self.metrics.ran(hit, 1e3 * (time.perf_counter() - start))
        return known

    def _made_on_host(self, plan: CutPlan, trace: Trace, slots: Sequence[int]) -> list[Buffer] | None:
        """The buffers of some slots of a trace, if it ran on the host."""
        if not (options.on_host and trace.mode == "fused" and options.background_compile):
            return None
        buffers = self.on_host.run(plan, trace, slots)
        if buffers is not None:
            self.metrics.on_host += 1
        return buffers

    def _compiled(self, plan: CutPlan, trace: Trace, live: tuple[int, ...]) -> tuple[Compiled, bool]:
        """A program that computes some slots and takes no memory, compiled here, and whether it was there already."""
        if plan.sized is not None:
            self.for_sizes.look_at(plan, trace, live, ())
        program = fitting(plan, live, ())
        hit = program is not None
        if program is None:
            program = plan.programs[live, ()] = self.compiler.compile(trace, live, ())
        return program, hit

    def _select(
        self, plan: CutPlan, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...]
    ) -> tuple[Compiled | Job | JobAtSizes, bool]:
        """The program to run, or the job of one that is not compiled yet, and whether it was there already."""
        program: Compiled | Job | JobAtSizes | None = fitting(plan, live, dead)
        hit = program is not None
        if program is None:
            patience = options.background_compile if trace.mode == "fused" else 0.0

            def unknown() -> Unknown:
                return self.stepwise.unknown(plan, trace, live, dead)

            def prepare() -> Prepared:
                return self.compiler.prepare(trace, live, dead)

            found = self.for_sizes.program(plan, trace, live, dead, patience, unknown)
            if found is not None:
                program, hit = found
            elif patience:
                program, hit = self.background.program(plan, live, dead, patience, prepare, unknown)
            else:
                program = self.compiler.compile(trace, live, dead)
        if not isinstance(program, Job | JobAtSizes):
            plan.programs[live, dead] = program
            plan.steps.clear()
        return program, hit

    def _run(self, program: Compiled | OnCopies, trace: Trace, held: list[tuple[int, Value]]) -> None:
        buffers = self._launch(program, trace)
        if len(held) != len(buffers):
            buffers = _of_slots(program, buffers, [slot for slot, _ in held])
        for (_, value), buffer in zip(held, buffers):  # without `strict`, which costs 0.4 us
            value.buffer = buffer
        self.inflight.keep_up()

    def _launch(self, program: Compiled | OnCopies, trace: Trace) -> list[Any]:
        checks, alone = program.binding.checks, trace.mode in ("strict", "debug")
        if checks and alone:  # all lines that have this op share its record
            line = self.user_line()
            checks = tuple([replace(check, line=line) for check in checks])
        return program.launch(trace.buffers, trace.numbers, checks, alone)

    def _pieces(
        self, plan: CutPlan, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...]
    ) -> tuple[list[tuple[Piece, Compiled | Job | JobAtSizes | None]], bool]:
        """The pieces of a trace with collectives, each with its program, and whether all programs were there."""
        pieces = plan.steps.get((live, dead))
        if pieces is None:
            records = trace.state.records()
            pieces = plan.steps[live, dead] = pieces_of(plan, records, live, dead)
        hit, found = True, list[tuple[Piece, Compiled | Job | JobAtSizes | None]]()
        for piece in pieces:
            state, key = piece.part.state, (piece.live, piece.dead)
            own = self.traces.ended(state)
            program: Compiled | Job | JobAtSizes | None = own.programs.get(key)
            if program is None and not piece.idle:
                part, known = Trace(state, NAMELESS, [], [], [], trace.begun, trace.mode), False
                if piece.call is None:
                    program, known = self._select(own, part, *key)
                else:  # it has no way to run but its program
                    program = own.programs[key] = self.compiler.compile(part, *key)
                hit = hit and known
            found.append((piece, program))
        return found, hit

    def _run_in_pieces(
        self,
        pieces: list[tuple[Piece, Compiled | Job | JobAtSizes | None]],
        plan: CutPlan,
        trace: Trace,
        held: list[tuple[int, Value]],
    ) -> None:
        """Run a trace with collectives."""
        turns = self.agreement.post(calls_of([piece for piece, _ in pieces]))
        self.launch_pieces(pieces, trace, held, dict(zip(plan.inputs, trace.buffers, strict=True)), turns)

    def launch_pieces(
        self,
        pieces: list[tuple[Piece, Compiled | Job | JobAtSizes | None]],
        trace: Trace,
        held: list[tuple[int, Value]],
        buffers: dict[int, Any],
        turns: Sequence[Turn],
    ) -> None:
        """The same, with the `buffers` of its inputs by slot; those of what is still needed are added. Each collective
        waits, in its turn, for the other processes to be at the same one."""
        coming = iter(turns)
        for piece, program in pieces:
            part = piece.part
            if program is not None:
                inputs = [buffers[slot] for slot in part.inputs]
                numbers = [trace.numbers[i] for i in part.numbers]
                own = Trace(part.state, NAMELESS, inputs, numbers, [], trace.begun, trace.mode)
                turn = None if piece.call is None else next(coming)
                buffers.update(zip(piece.made, self._run_piece(piece, program, own, held, turn), strict=True))
            for slot in piece.done_with:
                del buffers[slot]

    def _run_piece(
        self,
        piece: Piece,
        program: Compiled | Job | JobAtSizes,
        trace: Trace,
        held: list[tuple[int, Value]],
        turn: Turn | None,
    ) -> list[Any]:
        """Run one piece, as a `trace` of its own: the buffers of its results. It has a `turn` if it is a collective.
        `held` are the live values of the whole trace."""
        if isinstance(program, Job | JobAtSizes):
            values = [Value(layout, -1, -1, None, None) for layout in piece.layouts]
            for place, i in piece.given:
                values[i] = held[place][1]
            made = list(zip(piece.live, values, strict=True))
            self._run_meanwhile(program, self.traces.ended(piece.part.state), trace, made, piece.dead)
            return [value.buffer for value in values]
        status = None
        if turn is None:
            buffers = self._launch(program, trace)
            if len(piece.live) != len(buffers):
                buffers = _of_slots(program, buffers, piece.live)
        else:
            buffers, status = self._launch_in_turn(turn, program, trace)
        for place, i in piece.given:
            value = held[place][1]
            value.buffer = buffers[i]
            buffers[i] = value.buffer  # the one that was promised, if it was
        if turn is not None:
            turn.launched(status)
        self.inflight.keep_up()
        return buffers

    def _launch_in_turn(self, turn: Turn, program: Compiled, trace: Trace) -> tuple[list[Any], Any]:
        """Wait for the turn of a collective, and launch it: its results, and an array that is there when it is done."""
        turn.wait()
        return program.launch_watched(trace.buffers, trace.numbers)

    def _run_meanwhile(
        self, job: Job | JobAtSizes, plan: CutPlan, trace: Trace, held: list[tuple[int, Value]], dead: tuple[int, ...]
    ) -> None:
        """Run a trace whose program is being compiled: by a quick one or in parts if these are compiled, else op by op.
        If the program could not be compiled, this raises why, with the trace's results computed, as those of the steps
        before it."""
        if job.meanwhile is not None:
            self._run(job.meanwhile, trace, held)
            if job.way == "quick":
                self.metrics.quick += 1
            else:
                self.metrics.clustered += 1
        else:
            self.stepwise.run(plan, trace, held, dead)
            self.metrics.stepwise += 1
        if job.error is not None:
            raise again(job.error)

    def _exhausted(self, trace: Trace, held: list[tuple[int, Value]], program: Any, error: Any) -> OutOfMemoryError:
        MEMORY.exhausted += 1
        ran = program.program if isinstance(program, OnCopies) else program
        ran = ran if isinstance(ran, Compiled) else None
        return of_cut(error, trace, held, self.compiler.slot_names(trace.epoch), self.memory(), ran)


def _of_slots(program: Compiled | OnCopies, buffers: Sequence[Any], slots: Sequence[int]) -> list[Any]:
    """The buffers of these slots, from those of a program that computes more."""
    by_slot = dict(zip(program.binding.live, buffers, strict=True))
    return [by_slot[slot] for slot in slots]
