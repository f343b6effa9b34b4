"""Choice of the strategy of a cut."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from lazytpu.engine.compiling.background import Background
from lazytpu.engine.compiling.compiler import Compiler
from lazytpu.engine.compiling.for_sizes import ForSizes, JobAtSizes
from lazytpu.engine.compiling.jobs import Job
from lazytpu.engine.cutting.agreement import Agreement
from lazytpu.engine.cutting.cut import NAMELESS, Cut
from lazytpu.engine.cutting.on_copies import on_copies
from lazytpu.engine.cutting.on_host import HostWay, OnHost
from lazytpu.engine.cutting.order import Order
from lazytpu.engine.cutting.pieces import Piece, Pieces, pieces_of
from lazytpu.engine.cutting.stepwise import Stepwise
from lazytpu.engine.cutting.strategies import Host, Launch, LaunchSized, Meanwhile, Strategy
from lazytpu.engine.cutting.windows import Windows
from lazytpu.engine.launching.compiled import Compiled, fitting
from lazytpu.engine.launching.sized import AtSizes
from lazytpu.options import options
from lazytpu.trace.eviction import Traces
from lazytpu.trace.pending import Trace
from lazytpu.trace.trie import CutPlan


class Chooser:
    """Chooses the strategy of a cut and has programs compiled. `user_line` returns the script's current source line."""

    def __init__(
        self,
        compiler: Compiler,
        traces: Traces,
        user_line: Callable[[], Any],
        undisturbed: Callable[[], AbstractContextManager[Any]],
        parameter_count: Callable[[], int],
    ):
        inflight = compiler.queue.inflight
        self.compiler = compiler
        self.traces = traces
        self.user_line = user_line
        self.background = Background(compiler.build, compiler.quick, compiler.parts, compiler.costs, compiler.leave)
        self.for_sizes = ForSizes(compiler, self.background)
        self.on_host = OnHost(inflight, undisturbed, compiler.sized, parameter_count)
        self.windows = Windows(compiler, self.background)
        self.stepwise = Stepwise(compiler.prepare, compiler.build, inflight.keep_up)

    def choose(self, cut: Cut, order: Order) -> Strategy | None:
        """Return the strategy of a cut, or None if there is nothing to run. The first check that holds decides:

        1. The trace has collectives: run it in pieces, so that each collective is the same program on all ranks; or as
           one program, if `options.collectives` is "together" and all ranks do.
        2. No value is live, and no values are to be checked: run nothing.
        3. A program for exactly this cut exists: launch it. This is the hit.
        4. No input is deferred, and the trace is small, and short or varying: compute it on the host.
        5. No input is deferred, and a program would be compatible if it did not donate inputs still in use: launch it
           on copies of these.
        6. Another compatible program exists, for these sizes or for many: launch it (`program`).
        7. No program is compatible: compile one, on this thread or in the background.

        Before these checks, a bucket's program is replaced if the exact one is ready, or if it must not serve the
        trace.
        """
        plan, trace = cut.plan, cut.trace
        if plan.sized is not None:
            self.for_sizes.look_at(plan, trace, cut.live, cut.dead)
        if plan.collective:
            pieces = self._pieces(cut, order.agreement)
            together = options.collectives == "together"
            return self.windows.choose(cut, pieces, order.agreement) if together else pieces
        if not (cut.live or (plan.checks and options.bounds_check)):
            return None
        program = plan.programs.get((cut.live, cut.dead))
        if program is not None:
            return self.launch(program, trace)
        if order.awaits(trace):
            return self.program(cut)
        host_way = self.host_way(plan, trace)
        return self._without_host(cut) if host_way is None else Host(host_way, self.on_host, self._without_host)

    def _without_host(self, cut: Cut) -> Strategy:
        """Apply checks 5 to 7."""
        copying = on_copies(cut)
        if copying is None:
            return self.program(cut)
        program, copies = copying
        return Launch(program, copies=copies)

    def program(self, cut: Cut) -> Strategy:
        """Apply checks 6 and 7: return the launch of a compatible or newly compiled program, or a substitute until a
        background thread has compiled it."""
        plan, trace, live, dead = cut.plan, cut.trace, cut.live, cut.dead
        program: Compiled | Job | JobAtSizes | None = fitting(plan, live, dead)
        hit = program is not None
        if program is None:
            patience = options.background_compile if trace.mode == "fused" else 0.0
            unknown = partial(self.stepwise.unknown, cut)
            chosen = self.for_sizes.program(plan, trace, live, dead, patience, unknown)
            if chosen is None and patience:
                prepare = partial(self.compiler.prepare, trace, live, dead)
                chosen = self.background.program(plan, live, dead, patience, prepare, unknown)
            program, hit = chosen or (self.compiler.compile(trace, live, dead), False)
        if isinstance(program, Job | JobAtSizes):
            return Meanwhile(program, hit, self.stepwise, self.compiler.metrics)
        plan.programs[live, dead] = program
        plan.steps.clear()
        return self.launch(program, trace, hit)

    def launch(self, program: Compiled, trace: Trace, hit: bool = True) -> Launch:
        """Return the launch of a program. In strict and debug mode ops on several lines share a record, so its checks
        get the current line."""
        checks = None
        if program.binding.checks and trace.mode in ("strict", "debug"):
            line = self.user_line()
            checks = tuple([replace(check, line=line) for check in program.binding.checks])
        if isinstance(program, AtSizes):
            return LaunchSized(program, hit, checks, for_sizes=self.for_sizes)
        return Launch(program, hit, checks)

    def host_way(self, plan: CutPlan, trace: Trace) -> HostWay | None:
        """Return how to run a trace on the host, or None if it must not."""
        if not (options.on_host and trace.mode == "fused" and options.background_compile):
            return None
        return self.on_host.way(plan, trace)

    def compiled(self, plan: CutPlan, trace: Trace, live: tuple[int, ...]) -> tuple[Compiled, bool]:
        """Return a program that computes the slots `live` and donates nothing, and whether it existed already. Compile
        it on this thread if needed."""
        if plan.sized is not None:
            self.for_sizes.look_at(plan, trace, live, ())
        program = fitting(plan, live, ())
        hit = program is not None
        if program is None:
            program = plan.programs[live, ()] = self.compiler.compile(trace, live, ())
        return program, hit

    def _pieces(self, cut: Cut, agreement: Agreement) -> Pieces:
        """Return the strategy that runs a trace with collectives in pieces, each with its own strategy."""
        plan, key = cut.plan, (cut.live, cut.dead)
        pieces: list[Piece] | None = plan.steps.get(key)
        if pieces is None:
            pieces = plan.steps[key] = pieces_of(plan, cut.trace.state.records(), *key)
        chosen = [(piece, self._piece(piece, cut.trace)) for piece in pieces]
        return Pieces(chosen, agreement, all(strategy.hit for _, strategy in chosen if strategy is not None))

    def _piece(self, piece: Piece, whole: Trace) -> Strategy | None:
        """Return the strategy of one piece of the trace `whole`, or None if there is nothing to run."""
        state, live, dead = piece.part.state, piece.live, piece.dead
        plan = self.traces.ended(state)
        origin = whole.epoch, piece.part.slots
        trace = Trace(state, NAMELESS, [], [], [], whole.begun, whole.mode, origin=origin)
        if plan.sized is not None:
            self.for_sizes.look_at(plan, trace, live, dead)
        program, hit = plan.programs.get((live, dead)), True
        if program is None and piece.idle:
            return None
        if program is None and piece.call is None:
            return self.program(Cut(plan, trace, [], live, dead))
        if program is None:  # a collective always runs as its own program
            program, hit = self.compiler.compile(trace, live, dead), False
            plan.programs[live, dead] = program
        return self.launch(program, trace, hit)
