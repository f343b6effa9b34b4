"""The miss path: a trace to its program, from the index, or through import, passes and lowering."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lazytpu.collection import no_collection
from lazytpu.engine.compiling import handing
from lazytpu.engine.compiling.choice import Costs
from lazytpu.engine.compiling.costs import Busy, Estimator, quick_module
from lazytpu.engine.compiling.verifying import Verifier
from lazytpu.engine.launching.compiled import Compiled, Queue
from lazytpu.engine.metrics import Metrics
from lazytpu.engine.programs.binding import Binding
from lazytpu.engine.programs.target import target, untunable
from lazytpu.engine.recompiles.history import Making, Recompiles
from lazytpu.engine.recompiles.reasons import Reason, for_many_sizes
from lazytpu.engine.recompiles.wording import program_name
from lazytpu.engine.sizes import buckets
from lazytpu.engine.sizes.every import Templates
from lazytpu.engine.sizes.marked import Marked
from lazytpu.engine.sizes.templates import OneSize, Sized
from lazytpu.engine.sizes.unexpected import LookingFor
from lazytpu.engine.trace_cache import lookup
from lazytpu.inspection import debug, dumps
from lazytpu.inspection.about import about
from lazytpu.inspection.graphs import GRAPHS, ProgramGraph
from lazytpu.options import options
from lazytpu.ports import Inference
from lazytpu.runtime.cache.programs import Programs
from lazytpu.runtime.compiling.elsewhere import Ticket
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.program import Program
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import Record
from lazytpu.undisturbed import undisturbed

if TYPE_CHECKING:
    from lazytpu.engine.compiling.estimate import Work
    from lazytpu.engine.compiling.translate import Translated

Which = Literal["whole", "quick", "part"]
"""What of a step is compiled: all of it, all of it with less optimisation, or a part."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Program `number` of the process. It is either `ready`, since the index knew the trace, or `translated`, and what
    is left is to compile `translated.module`, on any thread.

    `content` is the digest that the index finds the trace by, None where it is not to find it; `making` is told what
    becomes of it. `load` says how busy the machine was when it was translated (`costs.Busy`). With `parts_only` the
    parts are compiled, and not the whole. One that may be compiled in the helper process has `handed`, which is told
    its ticket there; one that is `behind` has no step that waits for it.
    """

    number: int
    name: str
    records: Sequence[Record]
    content: str | None
    making: Making
    translated: Translated | None = None
    ready: Compiled | None = None
    parts_only: bool = False
    load: float = 1.0
    handed: Callable[[Ticket], None] | None = None
    behind: bool = False

    @property
    def binding(self) -> Binding:
        """What the program takes of its trace, and what it gives back."""
        stage = self.translated or self.ready
        assert stage is not None
        return stage.binding


class Compiler:
    """Compiles traces in two halves. `prepare` is Python's: it happens at the cut, on its thread, one at a time.
    `build` is XLA's: it may take minutes, on any thread, and holds no lock. Programs with the same StableHLO are
    compiled once."""

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
        self.recompiles = Recompiles(slot_names)
        self.templates = Templates(inference)
        self._preparing = threading.RLock()  # the passes and the list of graphs are not made for two threads
        self.verifier = Verifier(lambda: self.recompiles, self._preparing)

    def compile(self, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...]) -> Compiled:
        """The program that computes the slots `live`, and may take the memory of the inputs `dead`."""
        return self.build(self.prepare(trace, live, dead))

    def sized(self, trace: Trace) -> Sized | None:
        """The bucket and the sizes of a trace that may have a program for many; None for others."""
        if not buckets.active() or trace.mode not in ("fused", "lazy"):
            return None
        if not trace.epoch or trace.state.traits.collective:
            return None

        def marked() -> Marked | None:
            return Marked.of(trace.buffers, trace.state.records())

        with self._preparing, LookingFor("a template"):
            return self.templates.find(trace.state, lambda: self.parameter_slots(trace.epoch), marked)

    def prepare_bucket(self, sized: Sized, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...]) -> Prepared:
        """As `prepare`, the program of a trace's bucket. Raises OneSize if it is refused."""
        bucket, records = sized.bucket, trace.state.records()
        others = (each for each in bucket.forms.buckets.values() if each is not bucket)
        told = partial(for_many_sizes, several=any(each.plan.programs for each in others))
        refused = OneSize("looking for it failed, which is a bug: sharing_errors in lazytpu.metrics()")
        with self._preparing, no_collection():
            name, number = program_name(records), len(GRAPHS)
            with self.recompiles.making(number, name, trace, records, live, dead, told) as making:
                with LookingFor("the program of a bucket"):
                    try:
                        bucket.settle()
                        at_bound = Trace(bucket.state, trace.epoch, [], [], [], trace.begun, trace.mode)
                        return self._prepare(at_bound, live, dead, bucket.records(), name, number, making, sized)
                    except OneSize as error:  # these sizes stay part of the program
                        refused = error
                making.entry.notes = (f"no program for many sizes: {refused}",)
                making.entry.source = "refused"
        raise refused

    def prepare(
        self, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...], because: Reason | None = None
    ) -> Prepared:
        """Find the trace in the index, or take it through import, passes and lowering. `because` says why, if it is not
        that no earlier program serves. Raises ImportFailure and PassError, and RecompileError when there were too many
        recompiles already."""

        def told(reason: Reason) -> Reason:
            return because or reason

        with self._preparing, no_collection():
            records = trace.state.records()
            name, number = program_name(records), len(GRAPHS)
            with self.recompiles.making(number, name, trace, records, live, dead, told) as making:
                return self._prepare(trace, live, dead, records, name, number, making)

    def _prepare(
        self,
        trace: Trace,
        live: tuple[int, ...],
        dead: tuple[int, ...],
        records: list[Record],
        name: str,
        number: int,
        making: Making,
        sized: Sized | None = None,
    ) -> Prepared:
        bucket = None if sized is None else sized.bucket
        names = self.slot_names(trace.epoch) if trace.epoch else {}
        bounds_check, made_for, memory_limit = options.bounds_check, target(), options.memory_limit
        tuned = any(record.tuned for record in records) and untunable() is None
        origin = about(self.model_names(trace.epoch) if trace.epoch else [], str(made_for))

        def translated(parts: Callable[[Work], bool] | None = None) -> Translated:
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
                parts=parts,
                memory_limit=memory_limit,
                tuned=tuned,
                sized=sized,
            )

        if sized is not None:
            making.entry.notes = (sized.text,)
        content = lookup.content(records, live, dead, "" if bucket is None else bucket.text)
        if content is not None and not options.dump and options.debug < 2:  # those show the program being made
            start = time.perf_counter()
            recalled = lookup.recall(content, trace.state, live, dead, self.programs.recall)
            if recalled is not None:
                debug.loaded(number, name, len(records), 1e3 * (time.perf_counter() - start))
                GRAPHS.append(ProgramGraph(number, name, len(records), lambda: translated().texts(), origin))
                ready = Compiled.of(*recalled, records, name, self.queue)
                making.made("index", ready.binding.donated)
                return Prepared(number, name, records, content, making, ready=ready)
        parts_only = options.clusters == "only"
        busy = Busy()
        result = translated(None if sized else self._takes_apart(trace.mode, busy))
        GRAPHS.append(ProgramGraph(number, name, len(records), result.texts(), origin))
        making.entry.notes += (*result.notes, *(note for record in result.passes for note in record.notes))
        parts_only = parts_only and result.parts is not None
        content = content if result.complete else None  # a later process, with the pass mended, translates it again
        prepared = Prepared(number, name, records, content, making, result, None, parts_only, busy.load)
        if options.dump:
            _dump(options.dump, prepared, result, origin.text())
        return prepared

    def _takes_apart(self, mode: str, busy: Busy) -> Callable[[Work], bool] | None:
        """Says of a step in that mode whether to take it apart, given what compiling it costs."""
        if options.clusters == "only":
            return lambda work: True
        if options.clusters == "off" or mode != "fused" or not options.background_compile:
            return None
        if options.clusters == "meanwhile":
            return lambda work: True
        return lambda work: self.estimator.takes_apart(work, busy.load)

    def build(self, prepared: Prepared) -> Compiled:
        """The compiled program. Runs on any thread; a program that another thread is compiling is waited for.

        Raises CompileError.
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
        return Compiled.of(program, binding, prepared.records, prepared.name, self.queue)

    def costs(self, prepared: Prepared) -> Costs:
        """Estimates of the ways to a program that is translated."""
        assert prepared.translated is not None
        if prepared.parts_only:
            return Costs(0.0)  # there is nothing to choose
        parts = prepared.translated.parts
        if parts is not None and options.clusters == "meanwhile":
            return Costs(inf, inf, self.estimator.seconds(parts.work, prepared.load))
        return self.estimator.costs(prepared.translated, prepared.load, self.programs.__contains__)

    def quick(self, prepared: Prepared) -> Compiled:
        """The same program, compiled in less time with less optimisation. The index does not know it: a later process
        finds it on disk when it has translated the trace.

        Raises CompileError.
        """
        assert prepared.translated is not None
        program = self._program(prepared, quick_module(prepared.translated.module), prepared.name, "quick")
        return Compiled.of(program, prepared.binding, prepared.records, prepared.name, self.queue)

    def parts(self, prepared: Prepared) -> Compiled | None:
        """The same program in clusters that run one after the other; None when it was not taken apart. The index does
        not know it: a later process finds the parts on disk, but translates the trace into them again.

        Raises CompileError, which names the part.
        """
        translated = prepared.translated
        if translated is None or translated.parts is None:
            return None
        chain = translated.parts.chain(partial(self._program, prepared, which="part"), prepared.name)
        binding = translated.binding
        first = len(binding.packs)  # from positions of the program's arguments to inputs of the trace
        donated = frozenset(binding.inputs[i - first] for i in chain.signature.donated)
        return Compiled.of(chain, replace(binding, donated=donated), prepared.records, prepared.name, self.queue)

    def _program(self, prepared: Prepared, module: ir.Module, name: str, which: Which) -> Program:
        return self.programs.of(module, lambda key: self._obtain(prepared, module, key, name, which))

    def _obtain(self, prepared: Prepared, module: ir.Module, key: str, name: str, which: Which) -> Program:
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
            if which != "part" and not again and alone() and work is not None and not tickets:
                cost = work.quick if which == "quick" else work.full
                self.estimator.measured(cost, time.process_time() - start)
        if which != "part":
            prepared.making.made("compiled" if obtained.compiled else "disk", prepared.binding.donated)
        tell = debug.compiled if obtained.compiled else debug.loaded
        tell(prepared.number, name, len(prepared.records), obtained.milliseconds)
        return obtained.program

    def leave(self, prepared: Prepared) -> None:
        """Let the helper compile the whole program when this process has ended."""
        assert prepared.translated is not None
        handing.leave(prepared.translated.module, name=prepared.name, handed=partial(self._handed, prepared))

    def _handed(self, prepared: Prepared, key: str, ticket: Ticket) -> None:
        """The helper has a program: should this process end before it, the next one finds it by its trace."""
        assert prepared.handed is not None
        prepared.handed(ticket)
        self._note(prepared, key, coming=True)

    def _note(self, prepared: Prepared, key: str, *, coming: bool = False) -> None:
        if prepared.content is not None:
            records = len(prepared.records)
            lookup.note(prepared.content, key, prepared.binding, prepared.name, records, coming=coming)


def _dump(folder: Path, prepared: Prepared, translated: Translated, origin: str) -> None:
    """Write the stages of a program as files, with its reason and where it comes from."""
    number, name, reason = prepared.number, prepared.name, prepared.making.entry
    if translated.imported is not None:
        dumps.write(folder, number, name, "imported", translated.imported)
    dumps.write(folder, number, name, "lazytpu", translated.text)
    dumps.write(folder, number, name, "stablehlo", translated.stablehlo)
    dumps.write_about(folder, number, name, origin)
    if prepared.content is not None:
        records = len(prepared.records)
        about = lookup.dumped(prepared.content, translated.binding, name, records, translated.stablehlo)
        dumps.write_trace(folder, number, name, about)
    if reason.text:
        dumps.write_reason(folder, number, name, reason.reason())
