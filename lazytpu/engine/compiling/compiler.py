"""The miss path: a trace to its program, from the index, or through import, passes and lowering."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from lazytpu.aten.errors import Check
from lazytpu.engine.compiling.compiled import Compiled
from lazytpu.engine.compiling.target import target
from lazytpu.engine.metrics import Metrics
from lazytpu.engine.recompiles.history import Making, Recompiles
from lazytpu.engine.recompiles.wording import program_name
from lazytpu.engine.trace_cache import lookup as recall
from lazytpu.inspection import debug, dumps
from lazytpu.inspection.about import about
from lazytpu.inspection.graphs import GRAPHS, ProgramGraph
from lazytpu.options import options
from lazytpu.runtime.cache import programs
from lazytpu.runtime.client import ir
from lazytpu.runtime.program import Program
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import Record
from lazytpu.trace.value import again

if TYPE_CHECKING:
    from lazytpu.engine.compiling.translate import Translated


@dataclass(frozen=True, slots=True)
class Prepared:
    """Program `number` of the process. It is either there (`ready`), since the index knew the trace, or translated
    (`made`), and what is left is to compile `made.module`, on any thread.

    `content` is the digest that the index finds the trace by; `making` is told what becomes of it. With `parts_only`
    the parts of `made` are compiled, and not the whole.
    """

    number: int
    name: str
    records: Sequence[Record]
    live: tuple[int, ...]
    content: str | None
    making: Making
    made: Translated | None = None
    ready: Compiled | None = None
    parts_only: bool = False

    @property
    def donated(self) -> frozenset[int]:
        """The inputs whose memory the program takes."""
        return self._known.donated

    @property
    def checks(self) -> tuple[Check, ...]:
        """What the program's status is about."""
        return self._known.checks

    @property
    def _known(self) -> Translated | Compiled:
        known = self.made or self.ready
        assert known is not None
        return known


class Compiler:
    """Compiles traces in two halves: `prepare` is Python's and happens at the cut, on its thread, one at a time;
    `build` is XLA's, may take minutes, and holds no lock. Programs whose StableHLO is the same are compiled once."""

    def __init__(
        self,
        slot_names: Callable[[int], dict[int, str]],
        model_names: Callable[[int], list[str]],
        metrics: Metrics,
    ):
        self.slot_names = slot_names
        self.model_names = model_names
        self.metrics = metrics
        self.programs: WeakValueDictionary[str, Program] = WeakValueDictionary()  # those that some trace still uses
        self.recompiles = Recompiles(slot_names)
        self._preparing = threading.RLock()  # the passes and the list of graphs are not made for two threads
        self._building: dict[str, Future[Program]] = {}

    def compile(self, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...]) -> Compiled:
        """The program that computes the slots `live`, and may take the memory of the inputs `dead`."""
        return self.build(self.prepare(trace, live, dead))

    def prepare(self, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...]) -> Prepared:
        """The trace from the index, or through import, passes and lowering. Raises ImportFailure and PassError, and
        RecompileError when there were too many already."""
        with self._preparing, _no_collection():
            records = trace.state.records()
            name, number = program_name(records), len(GRAPHS)
            with self.recompiles.making(number, name, trace, records, live, dead) as making:
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
    ) -> Prepared:
        names = self.slot_names(trace.epoch) if trace.epoch else {}
        bounds_check, made_for, memory_limit = options.bounds_check, target(), options.memory_limit
        origin = about(self.model_names(trace.epoch) if trace.epoch else [], str(made_for))
        resident = options.resident if len(records) > 1 else 0  # a single op is no step

        def translated(parts: bool = False) -> Translated:
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
                resident=resident,
                memory_limit=memory_limit,
            )

        content = recall.content(records, live, dead)
        if content is not None and not options.dump and options.debug < 2:  # those want to see the program being made
            start = time.perf_counter()
            ready = recall.recall(content, trace.state, live, dead, name, self._loaded)
            if ready is not None:
                debug.loaded(number, name, len(records), 1e3 * (time.perf_counter() - start))
                GRAPHS.append(ProgramGraph(number, name, len(records), lambda: translated().texts(), origin))
                making.made("index", ready.donated)
                return Prepared(number, name, records, live, content, making, ready=ready)
        meanwhile = options.clusters == "meanwhile" and trace.mode == "fused" and options.background_compile > 0
        parts_only = options.clusters == "only"
        made = translated(meanwhile or parts_only)
        GRAPHS.append(ProgramGraph(number, name, len(records), made.texts(), origin))
        if options.dump:
            if made.imported is not None:
                dumps.write(options.dump, number, name, "imported", made.imported)
            dumps.write(options.dump, number, name, "lazytpu", made.text)
            dumps.write(options.dump, number, name, "stablehlo", made.stablehlo)
            dumps.write_about(options.dump, number, name, origin.text())
            if content is not None:
                told = recall.dumped(content, made.entry("", live), name, len(records), made.stablehlo)
                dumps.write_trace(options.dump, number, name, told)
            if making.entry.text:
                dumps.write_reason(options.dump, number, name, making.entry.reason())
        parts_only = parts_only and made.parts is not None
        return Prepared(number, name, records, live, content, making, made=made, parts_only=parts_only)

    def build(self, prepared: Prepared) -> Compiled:
        """The compiled program. Runs on any thread; a program that another thread is compiling is waited for.

        Raises CompileError.
        """
        if prepared.ready is not None:
            return prepared.ready
        assert prepared.made is not None
        if prepared.parts_only:
            with prepared.making:
                chained = self.parts(prepared)
            assert chained is not None
            prepared.making.made("compiled", chained.donated)
            return chained
        with prepared.making:
            program = self._program(prepared, prepared.made.module, prepared.name)
        prepared.making.made("shared", prepared.donated)
        assert program.key is not None
        entry = prepared.made.entry(program.key, prepared.live)
        if prepared.content is not None:
            recall.note(prepared.content, entry, prepared.name, len(prepared.records))
        return recall.compiled(entry, program, prepared.records, prepared.name)

    def parts(self, prepared: Prepared) -> Compiled | None:
        """The same in clusters that run one after the other; None when it was not taken apart. The index does not know
        it: a later process finds the parts on disk, but makes the trace into them again.

        Raises CompileError, which names the part.
        """
        made = prepared.made
        if made is None or made.parts is None:
            return None
        chain = made.parts.chain(partial(self._program, prepared, part=True), prepared.name)
        first = len(made.packs)  # positions of a program's arguments to inputs of the trace
        donated = tuple(made.inputs[i - first] for i in chain.signature.donated)
        entry = replace(made.entry("", prepared.live), donated=donated)
        return recall.compiled(entry, chain, prepared.records, prepared.name)

    def _loaded(self, key: str) -> Program | None:
        """The executable of that key from memory or disk."""
        program = self.programs.get(key) or programs.load(key)
        if program is not None:
            self.programs[key] = program
        return program

    def _program(self, prepared: Prepared, module: ir.Module, name: str, *, part: bool = False) -> Program:
        key = programs.program_key(module)
        while True:
            program = self.programs.get(key)
            if program is not None:
                return program
            mine: Future[Program] = Future()
            other = self._building.setdefault(key, mine)
            if other is mine:
                break
            try:
                return other.result()
            except CancelledError:  # an interrupt stopped that thread: this one compiles
                continue
        try:
            program = self.programs.get(key)  # another thread may just be done
            if program is None:
                program = self._obtained(prepared, module, key, name, part)
            self.programs[key] = program
            mine.set_result(program)
            return program
        except Exception as error:
            mine.set_exception(again(error))
            raise
        finally:
            mine.cancel()  # nothing to cancel unless an interrupt came
            del self._building[key]

    def _obtained(self, prepared: Prepared, module: ir.Module, key: str, name: str, part: bool) -> Program:
        found = programs.obtain(module, key, name=name)
        if found.compiled:
            self.metrics.compiled(found.milliseconds)
        if not part:
            prepared.making.made("compiled" if found.compiled else "disk", prepared.donated)
        tell = debug.compiled if found.compiled else debug.loaded
        tell(prepared.number, name, len(prepared.records), found.milliseconds)
        return found.program


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection inside: a module is a hundred thousand objects, all alive, and with torch and jax loaded
    one full collection takes 0.15 s of CPU."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
