"""The engine: what a cut does, and how data comes to the device and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.aten import dtypes, registry
from lazytpu.aten.errors import Check, ImportFailure
from lazytpu.aten.host_arrays import from_numpy, to_numpy
from lazytpu.aten.schema import functional, signature
from lazytpu.aten.support import missing_rule, supported
from lazytpu.engine.compiling.background import Background, Job
from lazytpu.engine.compiling.compiled import Compiled
from lazytpu.engine.compiling.compiler import Compiler
from lazytpu.engine.device import Device, available, capacity, limit
from lazytpu.engine.errors.cuts import failed_cut, not_imported
from lazytpu.engine.errors.lineage import Failure, Outcome
from lazytpu.engine.errors.undo import undo
from lazytpu.engine.launching.answers import Answers
from lazytpu.engine.launching.closing import close_at_exit
from lazytpu.engine.launching.inflight import Inflight
from lazytpu.engine.launching.packs import Packs
from lazytpu.engine.launching.stepwise import Stepwise
from lazytpu.engine.memory.alive import Amount, MemoryReport, Owners, report
from lazytpu.engine.memory.out_of_memory import OutOfMemoryError, check_size, of_cut
from lazytpu.engine.metrics import Metrics
from lazytpu.engine.resident import fill, gather
from lazytpu.engine.trace_cache.source_facts import recall_rules, remembered
from lazytpu.interrupts import Interrupted
from lazytpu.options import options
from lazytpu.passes.registry import watch
from lazytpu.ports import OpFacts
from lazytpu.runtime import client
from lazytpu.runtime.buffer import MEMORY, Buffer, Known, Origin
from lazytpu.runtime.cache.programs import TRAFFIC
from lazytpu.runtime.errors import OutOfMemory
from lazytpu.runtime.laid_out import arguments, result
from lazytpu.trace.eviction import Traces
from lazytpu.trace.extract import extract
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import CutPlan, State
from lazytpu.trace.value import EMPTY, Layout, Value, again


class Engine:
    """Turns traces into results, on one device. Implements `lazytpu.ports.EnginePort`."""

    def __init__(
        self,
        slot_names: Callable[[int], dict[int, str]],
        model_names: Callable[[int], list[str]],
        owners: Owners,
        user_line: Callable[[], Any],
    ):
        recall_rules()
        self.metrics = Metrics()
        self.compiler = Compiler(slot_names, model_names, self.metrics)
        self.background = Background(self.compiler.build, self.compiler.parts)
        self.stepwise = Stepwise(self, self.compiler.prepare, self.compiler.build)
        self.inflight = Inflight(self.metrics)
        self.traces = Traces()
        self.answers = Answers(self._know, lambda: self.metrics.answered())
        watch(self.traces.forget_programs)
        watch(self.answers.forget)
        self.packs = Packs()
        self._waited = 0.0  # metrics.wait_ms at the last cut
        self.owners = owners
        self.user_line = user_line
        self.device = Device(self.memory, lambda: self.metrics.device_ms)
        MEMORY.limit, MEMORY.available = limit(), available
        close_at_exit([self.inflight.close, self.background.close])

    def reset_metrics(self) -> None:
        """Start counting anew; the peak of memory becomes what is alive now."""
        self.metrics = self.inflight.metrics = self.compiler.metrics = Metrics()
        self._waited = 0.0
        MEMORY.reset_peak()
        TRAFFIC.reset()

    def memory(self) -> MemoryReport:
        """What is alive on the device."""
        programs = list(self.compiler.programs.values())
        code = Amount(sum(program.memory.code for program in programs), len(programs))
        beside = {"cached constants": self.packs.kept(), "programs": code}
        return report(self.owners, *capacity(), beside)

    # -- what ops mean

    def facts(self, op: OpOverload) -> OpFacts:
        """Which arguments of `op` are run-time numbers, whether it is random, whether matmul precision matters.

        Raises NotImplementedError, naming the op and the way to add it, when nothing expresses it.
        """
        if not supported(op):
            raise missing_rule(op)
        rules = registry.facts()
        found = rules.get(str(op))
        if found is None and signature(op).written:
            other = functional(op)
            found = None if other is None else rules.get(str(other))
        names = set(signature(op).names)
        numbers = frozenset() if found is None else found.numbers & names
        promotable = frozenset() if found is None else found.promotable & names
        random = torch.Tag.nondeterministic_seeded in op.tags or (found is not None and found.random)
        uses_precision = op._schema.name.partition("::")[2].rstrip("_") in USES_PRECISION
        return OpFacts(numbers, random, uses_precision, promotable)

    def rules(self) -> Collection[str]:
        """Names of the ops that have a rule of their own."""
        return registry.facts().keys()

    def remembered(self, name: str, make: Callable[[], list[str]]) -> list[str]:
        """What `make` gives, a list that depends on lazytpu's source and on torch alone: from disk when an earlier
        process made it."""
        return remembered(name, make)

    def functional(self, op: OpOverload) -> OpOverload | None:
        """The overload that computes what the mutating `op` writes, if there is one."""
        return functional(op) if signature(op).written else None

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise NotImplementedError, naming those there are, for a dtype that programs have no element type for."""
        dtypes.name(dtype)

    def check_size(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Raise RuntimeError, in the CPU's words, or torch.OutOfMemoryError for a tensor that is far too large."""
        check_size(dtype, shape)

    def check_import(self, state: State) -> None:
        """Raise RuntimeError, or torch.OutOfMemoryError, when the last record of a trace has no meaning: at a cut that
        would be told to whoever reads next."""
        from xdsl.utils.exceptions import VerifyException

        from lazytpu.aten.importer import import_trace  # loads xDSL

        records = state.records()
        try:
            import_trace(extract(records, (len(records) - 1,)).state.records(), (), ()).module.verify()
        except ImportFailure as error:
            raise not_imported(error) from error.__cause__
        except (RuntimeError, VerifyException) as error:  # torch's own code in its decompositions raises the former
            raise not_imported(ImportFailure(records[-1], error)) from error

    # -- cuts

    def plan_of(self, state: State) -> CutPlan:
        """The plan of a trace that is at `state`."""
        return self.traces.ended(state)

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
        wanted = live or (plan.checks and options.bounds_check)
        compiled = plan.programs.get((live, dead)) if wanted else None
        hit = compiled is not None
        try:
            if wanted and compiled is None:
                compiled, hit = self._select(plan, trace, live, dead)
            metrics.records += state.depth
            metrics.trace_ms += max(0.0, 1e3 * (start - trace.begun) - (metrics.wait_ms - self._waited))
            self._waited = metrics.wait_ms
            if compiled is not None:
                if isinstance(compiled, Job):
                    self._run_stepwise(compiled, plan, trace, held, dead)
                else:
                    self._run(compiled, trace, held)
                metrics.ran(hit, 1e3 * (time.perf_counter() - start))
        except Interrupted:
            raise
        except BaseException as error:
            if compiled is None and not isinstance(error, Exception):
                raise Interrupted from error
            failure = failed_cut(error, trace, held, partial(self._cut_exhausted, trace, held, compiled))
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
        alive = [(slot, v) for slot in plan.results if (v := trace.values[slot]()) is not None and v.buffer is None]
        undo(trace, alive).spoil(error)
        for buffer in trace.buffers:
            if buffer is not None and buffer is not EMPTY:
                buffer.pins -= 1

    def _select(
        self, plan: CutPlan, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...]
    ) -> tuple[Compiled | Job, bool]:
        """The program to run, or the job of a program that is not compiled yet, and whether it was there already."""
        found = self.fitting(plan, live, dead)
        hit = found is not None
        if found is None:
            patience = options.background_compile if trace.mode == "fused" else 0.0
            if not patience:
                found = self.compiler.compile(trace, live, dead)
            else:
                found, hit = self.background.program(
                    plan, live, dead, patience, lambda: self.compiler.prepare(trace, live, dead)
                )
        if not isinstance(found, Job):
            plan.programs[live, dead] = found
            plan.steps.clear()
        return found, hit

    def _run_stepwise(
        self, job: Job, plan: CutPlan, trace: Trace, held: list[tuple[int, Value]], dead: tuple[int, ...]
    ) -> None:
        """Run a trace without its program: in parts if they are compiled, else op by op. If the program could not be
        compiled, this is where it is told, with the trace's results computed: the steps before it had theirs, too."""
        if job.meanwhile is not None:
            self._run(job.meanwhile, trace, held)
            self.metrics.clustered += 1
        else:
            self.stepwise.run(plan, trace, held, dead)
            self.metrics.stepwise += 1
        if job.error is not None:
            raise again(job.error)

    def fitting(self, plan: CutPlan, live: tuple[int, ...], dead: tuple[int, ...]) -> Compiled | None:
        """A program that computes at least `live` and takes at most `dead`, the one with the fewest extra results. When
        garbage is collected can therefore never cause a compile (R4)."""
        needed, free = frozenset(live), frozenset(dead)
        programs = list(plan.programs.values())  # at once: another thread may add one
        fitting = [c for c in programs if needed.issubset(c.live) and c.donated <= free]
        return min(fitting, key=lambda c: (len(c.live), -len(c.donated)), default=None)

    def _run(self, compiled: Compiled, trace: Trace, held: list[tuple[int, Value]]) -> None:
        checks = compiled.checks
        eager = trace.mode in ("strict", "debug")
        if checks and eager:  # all lines that have this op share its record
            line = self.user_line()
            checks = tuple([replace(check, line=line) for check in checks])
        run = self.inflight.run(compiled.lineage, checks, trace.buffers, eager)
        results, launch = self._launch(compiled, trace.buffers, trace.numbers)
        outcomes, of = run.outcomes, compiled.lineage.of
        if compiled.resident:
            fill(compiled, held, results, outcomes)
        elif compiled.program.layouts is None and len(held) == len(compiled.live):
            each = repeat(outcomes[0]) if len(outcomes) == 1 else map(outcomes.__getitem__, of)
            made = zip(held, results, compiled.nbytes, compiled.origins, each, strict=False)
            for (_, value), array, size, origin, outcome in made:
                value.buffer = Buffer(array, size, origin, outcome)
        else:
            position = {slot: i for i, slot in enumerate(compiled.live)}
            layouts = compiled.program.layouts
            for slot, value in held:
                i = position[slot]
                size, origin, outcome = compiled.nbytes[i], compiled.origins[i], outcomes[of[i]]
                value.buffer = result(layouts, i, results[i], size, origin, outcome)
        self.inflight.add(run, results[-1], compiled.timing, launch)

    def launch(
        self, compiled: Compiled, buffers: Sequence[Buffer], numbers: list[Any], checks: tuple[Check, ...]
    ) -> tuple[list[Any], list[Outcome]]:
        """Run a program; the arrays of its results, and last its status, which is looked at later by `checks`. With
        them the outcomes of the groups of its results."""
        run = self.inflight.run(compiled.lineage, checks, buffers, True)
        results, launch = self._launch(compiled, buffers, numbers)
        self.inflight.add(run, results[-1], compiled.timing, launch)
        return results, run.outcomes

    def _launch(self, compiled: Compiled, buffers: Sequence[Buffer], numbers: list[Any]) -> tuple[list[Any], Any]:
        arrays: list[Any] = []
        if compiled.packs:
            packs = compiled.packer(numbers)
            arrays.extend([self.packs.upload(packs[i]) for i in compiled.packs])
        program = compiled.program
        if program.layouts is None:
            arrays.extend([buffers[i].array for i in compiled.inputs])
        else:
            arrays.extend(arguments(program.layouts, len(arrays), [buffers[i] for i in compiled.inputs]))
        flat = gather(compiled, buffers) if compiled.resident else ()
        arrays.extend([pack.array for pack in flat])
        memory = program.memory
        MEMORY.note_execution(memory.temporaries, memory.outputs, memory.aliased)
        launch = self.inflight.begin(compiled.timing)
        results = program.run(arrays)
        for i in compiled.donated:
            buffers[i].release()
        for pack in flat:
            pack.release()
        return results, launch

    def fell_back(self) -> None:
        """Count an op that was run on the CPU."""
        self.metrics.cpu_fallbacks += 1

    # -- data

    def upload(self, flat: torch.Tensor, layout: Layout, line: Any = None) -> Buffer:
        """A device buffer with a snapshot of the elements of `flat` (1-D, in memory order); `line` asked for it."""
        array = to_numpy(flat).reshape(layout.memory_shape)
        try:
            MEMORY.note_execution(0, array.nbytes, 0)
            return Buffer(client.to_device(array), array.nbytes, Origin("upload", line, None))
        except OutOfMemory as error:
            raise self._exhausted(error, "upload") from None

    def download(self, buffer: Buffer, dtype: torch.dtype) -> torch.Tensor:
        """A 1-D CPU tensor with a buffer's elements. Raises what failed in the runs that they depend on, once. Only a
        constant is read without waiting."""
        if buffer.host is not None:
            return from_numpy(buffer.host.copy().reshape(-1), dtype)
        self.inflight.settle()
        if buffer.outcome is not None and buffer.outcome.failures:
            self._tell(buffer.outcome.failures)
        if buffer.error is not None:
            raise again(buffer.error)
        try:
            with self.metrics.waiting():
                array = buffer.fetch()
        except OutOfMemory as error:
            raise self._exhausted(error, "read") from None
        return from_numpy(array.reshape(-1), dtype)

    def _know(self, trace: Trace, slot: int) -> Known | None:
        """The constant that a trace computes as `slot`; None when that fails, or a check of values does: the read cuts
        then, and tells it."""
        start = time.perf_counter()
        try:
            plan = self.traces.ended(trace.state)
            compiled = self.fitting(plan, (slot,), ())
            hit = compiled is not None
            if compiled is None:
                compiled = plan.programs[(slot,), ()] = self.compiler.compile(trace, (slot,), ())
            results, _ = self.launch(compiled, trace.buffers, trace.numbers, ())
            passed = not compiled.checks or client.to_host(results[-1], copy=False).all()
            i = compiled.live.index(slot)
            host = client.to_host(results[i], copy=True)
        except Exception:  # noqa: BLE001  (whatever it is: the read that cuts meets it again, and tells it in full)
            return None
        self.metrics.ran(hit, 1e3 * (time.perf_counter() - start))
        return Known(results[i], compiled.nbytes[i], compiled.origins[i], host) if passed else None

    def launched(self) -> int:
        """How many runs there were."""
        return self.inflight.launched

    def wait(self, since: int = 0) -> None:
        """Wait until everything launched is done, and raise what failed and nobody was told of, in runs after the first
        `since`."""
        self.inflight.settle()
        if self.inflight.failures:
            self._tell([failure for failure in self.inflight.failures if failure.run > since])

    def _tell(self, failures: Sequence[Failure]) -> None:
        try:
            self.inflight.tell(failures)
        except OutOfMemory as error:
            raise self._exhausted(error, "read") from None

    def idle(self) -> bool:
        """Whether everything launched is done; what failed is still to be raised."""
        return self.inflight.idle()

    def _cut_exhausted(self, trace: Trace, held: Any, compiled: Any, error: Any) -> OutOfMemoryError:
        MEMORY.exhausted += 1
        ran = None if isinstance(compiled, Job) else compiled
        return of_cut(error, trace, held, self.compiler.slot_names(trace.epoch), self.memory(), ran)

    def _exhausted(self, error: OutOfMemory, stage: str) -> OutOfMemoryError:
        """An error of memory while data is moved, told in full."""
        MEMORY.exhausted += 1
        return OutOfMemoryError(error, stage, self.memory())


# Ops whose float32 products obey torch.set_float32_matmul_precision.
USES_PRECISION = frozenset(
    """mm bmm addmm baddbmm addbmm mv addmv dot vdot linear addr convolution convolution_backward
    attention attention_dropout attention_backward einsum matmul _convolution linear_backward""".split()
)
