"""Chooses how a cut runs."""

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
from lazytpu.engine.launching.compiled import Compiled, fitting
from lazytpu.engine.launching.sized import AtSizes
from lazytpu.options import options
from lazytpu.trace.eviction import Traces
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import CutPlan


class Chooser:
    """Chooses the strategy of a cut, and has programs compiled. `user_line` is the line of the script that runs now."""

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
        self.stepwise = Stepwise(compiler.prepare, compiler.build, inflight.keep_up)

    def choose(self, cut: Cut, order: Order) -> Strategy | None:
        """The strategy of a cut; None where there is nothing to run. The first check that holds decides:

        1. Collectives: the trace runs in pieces, which other processes know.
        2. Nothing is alive, and no check of values is wanted: nothing runs.
        3. A program for exactly this cut is known: it is launched. This is the hit.
        4. No input waits for a cut before it, and the trace is small, and short or varying: the host computes it.
        5. No input waits for a cut before it, and a program would serve if it took no input that somebody still needs:
           it takes copies of these.
        6. Any other program that serves, for these sizes or for many: it is launched (`program`).
        7. No program serves: one is compiled, here or in the background.

        Before all of them, programs for many sizes are replaced where the exact one is there, or they may not serve.
        """
        plan, trace = cut.plan, cut.trace
        if plan.sized is not None:
            self.for_sizes.look_at(plan, trace, cut.live, cut.dead)
        if plan.collective:
            return self._pieces(cut, order.agreement)
        if not (cut.live or (plan.checks and options.bounds_check)):
            return None
        program = plan.programs.get((cut.live, cut.dead))
        if program is not None:
            return self.launch(program, trace)
        if order.awaits(trace):
            return self.program(cut)
        way = self.host_way(plan, trace)
        return self._without_host(cut) if way is None else Host(way, self.on_host, self._without_host)

    def _without_host(self, cut: Cut) -> Strategy:
        """Checks 5 to 7."""
        copying = on_copies(cut)
        if copying is None:
            return self.program(cut)
        program, copies = copying
        return Launch(program, copies=copies)

    def program(self, cut: Cut) -> Strategy:
        """Checks 6 and 7: launch the program that serves a cut, or one that is compiled here, or what runs until a
        thread has compiled it."""
        plan, trace, live, dead = cut.plan, cut.trace, cut.live, cut.dead
        program: Compiled | Job | JobAtSizes | None = fitting(plan, live, dead)
        hit = program is not None
        if program is None:
            patience = options.background_compile if trace.mode == "fused" else 0.0
            unknown = partial(self.stepwise.unknown, cut)
            found = self.for_sizes.program(plan, trace, live, dead, patience, unknown)
            if found is None and patience:
                prepare = partial(self.compiler.prepare, trace, live, dead)
                found = self.background.program(plan, live, dead, patience, prepare, unknown)
            program, hit = found or (self.compiler.compile(trace, live, dead), False)
        if isinstance(program, Job | JobAtSizes):
            return Meanwhile(program, hit, self.stepwise, self.compiler.metrics)
        plan.programs[live, dead] = program
        plan.steps.clear()
        return self.launch(program, trace, hit)

    def launch(self, program: Compiled, trace: Trace, hit: bool = True) -> Launch:
        """Launch a program. In strict and debug mode all lines that have an op share its record, and so its checks."""
        checks = None
        if program.binding.checks and trace.mode in ("strict", "debug"):
            line = self.user_line()
            checks = tuple([replace(check, line=line) for check in program.binding.checks])
        if isinstance(program, AtSizes):
            return LaunchSized(program, hit, checks, for_sizes=self.for_sizes)
        return Launch(program, hit, checks)

    def host_way(self, plan: CutPlan, trace: Trace) -> HostWay | None:
        """How a trace runs on the host; None where it does not."""
        if not (options.on_host and trace.mode == "fused" and options.background_compile):
            return None
        return self.on_host.way(plan, trace)

    def compiled(self, plan: CutPlan, trace: Trace, live: tuple[int, ...]) -> tuple[Compiled, bool]:
        """A program that computes some slots and takes no memory, compiled here, and whether it was there already."""
        if plan.sized is not None:
            self.for_sizes.look_at(plan, trace, live, ())
        program = fitting(plan, live, ())
        hit = program is not None
        if program is None:
            program = plan.programs[live, ()] = self.compiler.compile(trace, live, ())
        return program, hit

    def _pieces(self, cut: Cut, agreement: Agreement) -> Pieces:
        """The pieces of a trace with collectives, each with its own strategy."""
        plan, key = cut.plan, (cut.live, cut.dead)
        pieces: list[Piece] | None = plan.steps.get(key)
        if pieces is None:
            pieces = plan.steps[key] = pieces_of(plan, cut.trace.state.records(), *key)
        chosen = [(piece, self._piece(piece, cut.trace)) for piece in pieces]
        return Pieces(chosen, agreement, all(one.hit for _, one in chosen if one is not None))

    def _piece(self, piece: Piece, whole: Trace) -> Strategy | None:
        state, live, dead = piece.part.state, piece.live, piece.dead
        plan = self.traces.ended(state)
        trace = Trace(state, NAMELESS, [], [], [], whole.begun, whole.mode)
        program, hit = plan.programs.get((live, dead)), True
        if program is None and piece.idle:
            return None
        if program is None and piece.call is None:
            return self.program(Cut(plan, trace, [], live, dead))
        if program is None:  # a collective has no other strategy than its program
            program, hit = self.compiler.compile(trace, live, dead), False
            plan.programs[live, dead] = program
        return self.launch(program, trace, hit)
