"""The miss path: from a trace to its program, by the index on disk, or by import, passes and lowering."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary, WeakValueDictionary

from lazytpu.collection import no_collection
from lazytpu.engine.compiling import handing
from lazytpu.engine.compiling.choice import Costs
from lazytpu.engine.compiling.costs import Busy, Estimator, quick_module
from lazytpu.engine.compiling.prepared import Prepared, dump, for_target
from lazytpu.engine.compiling.verifying import Verifier
from lazytpu.engine.errors.unexpected import looking_for
from lazytpu.engine.launching.compiled import Compiled, Queue
from lazytpu.engine.metrics import Metrics
from lazytpu.engine.programs.binding import Binding
from lazytpu.engine.programs.target import target, untunable
from lazytpu.engine.recompiles.explanation import Made
from lazytpu.engine.recompiles.history import Making, Recompiles
from lazytpu.engine.recompiles.reasons import Reason, for_many_sizes
from lazytpu.engine.recompiles.wording import program_name
from lazytpu.engine.sizes import buckets
from lazytpu.engine.sizes.buckets import OneSize
from lazytpu.engine.sizes.every import Templates
from lazytpu.engine.sizes.marked import Marked
from lazytpu.engine.sizes.templates import Sized
from lazytpu.engine.trace_cache import lookup
from lazytpu.inspection import debug
from lazytpu.inspection.about import about
from lazytpu.inspection.graphs import GRAPHS, ProgramGraph
from lazytpu.options import options
from lazytpu.ports import Inference
from lazytpu.runtime.cache.programs import Programs
from lazytpu.runtime.compiling.elsewhere import Ticket
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.program import Program
from lazytpu.timeline import TIMELINE, Compilation
from lazytpu.trace.pending import Trace
from lazytpu.trace.trie import Record
from lazytpu.undisturbed import undisturbed

if TYPE_CHECKING:
    from lazytpu.engine.compiling.estimate import Work
    from lazytpu.engine.compiling.translate import Translated

Which = Literal["whole", "quick", "part"]
"""The variant that is compiled: the whole program, the whole with less optimisation, or a part."""


class Compiler:
    """Compiles traces in two stages. Programs with equal StableHLO are compiled once.

    `prepare` runs Python at the cut, on the cut's thread, one trace at a time. `build` runs XLA on any thread, may take
    minutes, and holds no lock.
    """

    def __init__(
        self,
        slot_names: Callable[[int], dict[int, str]],
        parameter_slots: Callable[[int], frozenset[int]],
        model_names: Callable[[int], list[str]],
        metrics: Metrics,
        queue: Queue,
        inference: Inference,
    ):
        self.slot_names = slot_names
        self.parameter_slots = parameter_slots
        self.model_names = model_names
        self.metrics = metrics
        self.queue = queue
        self.inference = inference
        self.estimator = Estimator()
        self.programs = Programs()
        self.by_content: WeakValueDictionary[str, Compiled] = WeakValueDictionary()  # in use, by their traces
        self._makings: WeakKeyDictionary[Compiled, Making] = WeakKeyDictionary()
        self.recompiles = Recompiles(slot_names)
        self.templates = Templates(inference)
        self._preparing = threading.RLock()  # the passes and the list of graphs are not thread-safe
        self.verifier = Verifier(lambda: self.recompiles, self._preparing)

    def forget_programs(self) -> None:
        """Drop the programs of buckets and of equal traces, so that the next trace compiles anew."""
        self.templates.forget_programs()
        self.by_content.clear()

    def compile(self, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...]) -> Compiled:
        """Return a program that computes the slots `live` and may donate the inputs `dead`."""
        return self.build(self.prepare(trace, live, dead))

    def sized(self, trace: Trace) -> Sized | None:
        """Return the bucket and sizes of a trace, or None if it can only have an exact program."""
        if not buckets.active() or trace.mode not in ("fused", "lazy"):
            return None
        if not (trace.epoch or trace.origin) or trace.state.traits.collective:
            return None

        def marked() -> Marked | None:
            return Marked.of(trace.buffers, trace.state.records())

        with self._preparing, looking_for("a template"):
            return self.templates.find(trace.state, lambda: self._parameters(trace), marked)

    def _parameters(self, trace: Trace) -> Collection[int]:
        """Return the slots of parameters and buffers of modules."""
        if trace.origin is None:
            return self.parameter_slots(trace.epoch)
        epoch, slots = trace.origin
        return [slots[slot] for slot in self.parameter_slots(epoch) if slot in slots]

    def prepare_bucket(self, sized: Sized, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...]) -> Prepared:
        """Prepare the program of a trace's bucket, as `prepare` does. Raise OneSize if it is refused."""
        bucket, records = sized.bucket, trace.state.records()
        refused = OneSize("looking for it failed, which is a bug: sharing_errors in lazytpu.metrics()")
        with self._preparing, no_collection():
            name, number = program_name(records), len(GRAPHS)
            content = None
            with looking_for("the program of an equal bucket"):
                content = lookup.content(bucket.records(), live, dead, bucket.text)
                if ready := self._of_equal_trace(content, trace, bucket.records(), name):
                    return ready
            with self.recompiles.making(number, name, trace, records, live, dead, for_many_sizes) as making:
                with looking_for("the program of a bucket"):
                    try:
                        at_bound = Trace(bucket.state, trace.epoch, [], [], [], trace.begun, trace.mode)
                        return self._prepare(
                            at_bound, live, dead, bucket.records(), name, number, content, making, sized
                        )
                    except OneSize as error:  # the sizes are compiled in
                        refused = error
                making.refuse(str(refused))
                debug.refused(number, name, str(refused))
        raise refused

    def prepare(
        self,
        trace: Trace,
        live: tuple[int, ...],
        dead: tuple[int, ...],
        because: Reason | None = None,
        of_job: Sequence[Record] = (),
    ) -> Prepared:
        """Load a trace's program from the index, or translate the trace by import, passes and lowering.

        `because` is the reason of the compilation, if it is not that no earlier program is compatible. `of_job` are the
        records of the trace with collectives on a mesh of all ranks, for a program that these run together. Raise
        ImportFailure, PassError, or RecompileError after too many recompiles.
        """

        def told(reason: Reason) -> Reason:
            return because or reason

        with self._preparing, no_collection():
            records = list(of_job) or trace.state.records()
            name, number = program_name(records), len(GRAPHS)
            content = lookup.content(records, live, dead, "of a job" if of_job else "")
            if ready := self._of_equal_trace(content, trace, records, name):
                return ready
            with self.recompiles.making(number, name, trace, records, live, dead, told) as making:
                return self._prepare(trace, live, dead, records, name, number, content, making, of_job=bool(of_job))

    def _of_equal_trace(
        self, content: str | None, trace: Trace, records: Sequence[Record], name: str
    ) -> Prepared | None:
        """Return the program of an equal trace that was recorded in another way, such as part of a longer one; None if
        no such program is in use. It is listed once, with the reason of the first trace."""
        equal = None if content is None else self.by_content.get(content)
        if equal is None or _shows_translations():
            return None
        if first := self._makings.get(equal):
            self.recompiles.shared(first, trace, trace.state.records())
        checks = tuple([replace(check, line=records[check.record].line) for check in equal.binding.checks])
        ready = Compiled.of(equal.program, replace(equal.binding, checks=checks), records, name, self.queue)
        making = Making(Made(len(GRAPHS), name, len(records)))
        making.made("shared", ready.binding.donated)
        return Prepared(len(GRAPHS), name, records, content, making, ready=ready)

    def _prepare(
        self,
        trace: Trace,
        live: tuple[int, ...],
        dead: tuple[int, ...],
        records: list[Record],
        name: str,
        number: int,
        content: str | None,
        making: Making,
        sized: Sized | None = None,
        of_job: bool = False,
    ) -> Prepared:
        names = self.slot_names(trace.epoch) if trace.epoch else {}
        bounds_check, made_for, memory_limit = options.bounds_check, target(), options.memory_limit
        tuned = any(record.tuned for record in records) and untunable() is None
        origin = about(self.model_names(trace.epoch) if trace.epoch else [], str(made_for))

        def translated(parts: Callable[[Work], bool] | None = None, platform: str | None = None) -> Translated:
            with undisturbed():
                from lazytpu.engine.compiling.translate import translate  # here: it loads xDSL and every rule

            return translate(
                records,
                live,
                dead,
                names,
                name=name,
                bounds_check=bounds_check,
                target=made_for,
                platform=platform,
                parts=parts,
                memory_limit=memory_limit,
                tuned=tuned,
                sized=sized,
                of_job=of_job,
            )

        if sized is not None:
            because = sized.bucket.forms.because
            making.entry.notes = (sized.text, *([f"earlier programs do not serve it: {because}"] if because else []))
            sized.bucket.makings.append(making)
        # Look the program up in the index.
        if content is not None and not _shows_translations():
            start = time.perf_counter()
            recalled = lookup.recall(content, trace.state, live, dead, self.programs.recall)
            if recalled is not None:
                debug.loaded(number, name, len(records), 1e3 * (time.perf_counter() - start))
                GRAPHS.append(ProgramGraph(number, name, len(records), lambda: translated().texts(), origin))
                ready = self.by_content[content] = Compiled.of(*recalled, records, name, self.queue)
                self._makings[ready] = making
                making.made("index", ready.binding.donated)
                _note_guards(making, ready.binding)
                return Prepared(number, name, records, content, making, ready=ready)
        # Translate the trace, and record its texts and notes.
        parts_only = options.clusters == "only"
        busy = Busy()
        result = translated(None if sized else self._takes_apart(trace.mode, busy))
        GRAPHS.append(ProgramGraph(number, name, len(records), result.texts(), origin))
        making.entry.notes += (*result.notes, *(note for record in result.passes for note in record.notes))
        _note_guards(making, result.binding)
        parts_only = parts_only and result.parts is not None
        content = content if result.complete else None  # a later process, with the pass fixed, translates it again
        prepared = Prepared(number, name, records, content, making, result, None, parts_only, busy.load)
        if options.dump:
            dump(options.dump, prepared, for_target(made_for, translated, result), origin.text())
        return prepared

    def _takes_apart(self, mode: str, busy: Busy) -> Callable[[Work], bool] | None:
        """Return a predicate that decides from a module's cost whether to split a step, or None if steps of this mode
        are not split."""
        if options.clusters == "only":
            return lambda work: True
        if options.clusters == "off" or mode != "fused" or not options.background_compile:
            return None
        if options.clusters == "meanwhile":
            return lambda work: True
        return lambda work: self.estimator.takes_apart(work, busy.load)

    def build(self, prepared: Prepared) -> Compiled:
        """Return the compiled program. This runs on any thread, and waits if another thread compiles the same program.

        Raise CompileError.
        """
        if prepared.ready is not None:
            return prepared.ready
        assert prepared.translated is not None
        if prepared.parts_only:
            with prepared.making:
                chained = self.parts(prepared)
            assert chained is not None
            prepared.making.made("compiled", chained.binding.donated)
            return chained
        binding = prepared.binding
        with prepared.making:
            program = self._program(prepared, prepared.translated.module, prepared.name, "whole")
        prepared.making.made("shared", binding.donated)
        assert program.key is not None
        self._note(prepared, program.key)
        compiled = Compiled.of(program, binding, prepared.records, prepared.name, self.queue)
        if prepared.content is not None:
            self.by_content[prepared.content] = compiled
            self._makings[compiled] = prepared.making
        return compiled

    def costs(self, prepared: Prepared) -> Costs:
        """Return estimates for the strategies to obtain a translated program."""
        assert prepared.translated is not None
        if prepared.parts_only:
            return Costs(0.0)  # there is nothing to choose
        parts = prepared.translated.parts
        if parts is not None and options.clusters == "meanwhile":
            return Costs(inf, inf, self.estimator.seconds(parts.work, prepared.load))
        return self.estimator.costs(prepared.translated, prepared.load, self.programs.__contains__)

    def quick(self, prepared: Prepared) -> Compiled:
        """Return the program compiled in less time with less optimisation. It is not in the index: a later process
        finds it on disk after translating the trace.

        Raise CompileError.
        """
        assert prepared.translated is not None
        program = self._program(prepared, quick_module(prepared.translated.module), prepared.name, "quick")
        return Compiled.of(program, prepared.binding, prepared.records, prepared.name, self.queue)

    def parts(self, prepared: Prepared) -> Compiled | None:
        """Return the program in clusters that run one after the other; None if it was not split. The clusters are not
        in the index: a later process finds them on disk after translating the trace.

        Raise CompileError, which names the part.
        """
        translated = prepared.translated
        if translated is None or translated.parts is None:
            return None
        chain = translated.parts.chain(partial(self._program, prepared, which="part"), prepared.name)
        binding = translated.binding
        first = len(binding.packs)  # argument positions to inputs of the trace
        donated = frozenset(binding.inputs[i - first] for i in chain.signature.donated)
        return Compiled.of(chain, replace(binding, donated=donated), prepared.records, prepared.name, self.queue)

    def _program(self, prepared: Prepared, module: ir.Module, name: str, which: Which) -> Program:
        """Return the program of a module, compiled at most once in this process."""
        return self.programs.of(module, lambda key: self._obtain(prepared, module, key, name, which))

    def _obtain(self, prepared: Prepared, module: ir.Module, key: str, name: str, which: Which) -> Program:
        """Load or compile a program, and record its cost and source."""
        work = None if prepared.translated is None else prepared.translated.work
        tickets: list[Ticket] = []

        def handed(ticket: Ticket) -> None:
            tickets.append(ticket)
            self._handed(prepared, key, ticket)

        helped = work is not None and which == "whole" and prepared.handed is not None
        seconds = self.estimator.seconds(work.full, prepared.load) if work is not None else 0.0
        start = time.process_time()
        with self.estimator.alone() as alone:
            obtained = handing.obtain(
                module, key, seconds, behind=prepared.behind, name=name, handed=handed if helped else None
            )
        if obtained.compiled:
            again = which == "whole" and prepared.making.entry.source == "compiled"  # quickly, before now
            self.metrics.compiled(obtained.milliseconds, again)
            now = time.perf_counter()
            TIMELINE.compiled(Compilation(name, now - 1e-3 * obtained.milliseconds, now))
            if which != "part" and not again and alone() and work is not None and not tickets:
                cost = work.quick if which == "quick" else work.full
                self.estimator.measured(cost, time.process_time() - start)
        if which != "part":
            prepared.making.made("compiled" if obtained.compiled else "disk", prepared.binding.donated)
        tell = debug.compiled if obtained.compiled else debug.loaded
        tell(prepared.number, name, len(prepared.records), obtained.milliseconds)
        return obtained.program

    def leave(self, prepared: Prepared) -> None:
        """Let the helper process compile the whole program after this process has ended."""
        assert prepared.translated is not None
        handing.leave(prepared.translated.module, name=prepared.name, handed=partial(self._handed, prepared))

    def _handed(self, prepared: Prepared, key: str, ticket: Ticket) -> None:
        """Note in the index that the helper process compiles a program, so that the next process finds it even if this
        one ends first."""
        assert prepared.handed is not None
        prepared.handed(ticket)
        self._note(prepared, key, coming=True)

    def _note(self, prepared: Prepared, key: str, *, coming: bool = False) -> None:
        """Store a program in the index under its trace."""
        if prepared.content is not None:
            records = len(prepared.records)
            lookup.note(prepared.content, key, prepared.binding, prepared.name, records, coming=coming)


def _note_guards(making: Making, binding: Binding) -> None:
    """Say that a program for many sizes whose ops branch on a size serves some of them."""
    if binding.padding is not None and binding.padding.expressions.guards:
        making.entry.limit()


def _shows_translations() -> bool:
    """Whether options ask for the texts of each translation."""
    return bool(options.dump) or options.debug >= 2
