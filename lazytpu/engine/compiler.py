"""The miss path: a trace through import, passes and lowering to a compiled program."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from lazytpu.aten.failures import Check
from lazytpu.aten.scalars import Packer
from lazytpu.engine.inflight import Timing
from lazytpu.engine.metrics import Metrics
from lazytpu.engine.origins import origins
from lazytpu.inspect import debug, dumps
from lazytpu.inspect.graphs import GRAPHS, Graph
from lazytpu.options import options
from lazytpu.runtime.buffer import Origin
from lazytpu.runtime.cache.programs import obtain, program_key
from lazytpu.runtime.program import Program
from lazytpu.trace.recorder import Trace
from lazytpu.trace.value import again

if TYPE_CHECKING:
    from lazytpu.engine.translate import Translated


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program as a cut needs it.

    `live` are the slots of its results (its last result is the status); `packs` the positions of the packs it takes,
    `inputs` the indices of the trace's inputs it takes, after them; `donated` the inputs (indices into the trace's)
    whose memory it takes; `nbytes` the size of each result, `origins` the op and line that made it.
    """

    program: Program
    packer: Packer
    packs: tuple[int, ...]
    inputs: tuple[int, ...]
    donated: frozenset[int]
    live: tuple[int, ...]
    nbytes: tuple[int, ...]
    origins: tuple[Origin, ...]
    checks: tuple[Check, ...]
    timing: Timing


@dataclass(frozen=True, slots=True)
class Prepared:
    """A trace as XLA is given it, program `number` of the process: what is left is to compile `made.module`, on any
    thread."""

    number: int
    name: str
    records: int
    live: tuple[int, ...]
    made: Translated
    origins: tuple[Origin, ...]


class Compiler:
    """Compiles traces in two halves: `prepare` is Python's and happens at the cut, on its thread, one at a time;
    `build` is XLA's, may take minutes, and holds no lock. Programs whose StableHLO is the same are compiled once."""

    def __init__(self, slot_names: Callable[[int], dict[int, str]], metrics: Metrics):
        self.slot_names = slot_names
        self.metrics = metrics
        self.programs: WeakValueDictionary[str, Program] = WeakValueDictionary()  # those that some trace still uses
        self._preparing = threading.RLock()  # the passes and the list of graphs are not made for two threads
        self._building: dict[str, Future[Program]] = {}

    def compile(self, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...]) -> Compiled:
        """The program that computes the slots `live`, and may take the memory of the inputs `dead`."""
        return self.build(self.prepare(trace, live, dead))

    def prepare(self, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...]) -> Prepared:
        """The trace through import, passes and lowering. Raises ImportFailure and PassError."""
        with self._preparing, _no_collection():
            return self._prepare(trace, live, dead)

    def _prepare(self, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...]) -> Prepared:
        from lazytpu.engine.translate import translate  # here: it loads xDSL and every rule

        records = trace.state.records()
        name = _name(records)
        names = self.slot_names(trace.epoch) if trace.epoch else {}
        made = translate(records, live, dead, names, name=name, bounds_check=options.bounds_check)
        number = len(GRAPHS)
        GRAPHS.append(Graph(number, name, made.text, made.stablehlo, made.passes))
        if options.dump:
            dumps.write(options.dump, number, name, "lazytpu", made.text)
            dumps.write(options.dump, number, name, "stablehlo", made.stablehlo)
        return Prepared(number, name, len(records), live, made, origins(records, live, name))

    def build(self, prepared: Prepared) -> Compiled:
        """The compiled program. Runs on any thread; a program that another thread is compiling is waited for.

        Raises CompileError.
        """
        program = self._program(prepared)
        sizes = tuple(dtype.itemsize * prod(shape) for dtype, shape in program.signature.results)
        made = prepared.made
        return Compiled(
            program,
            made.packer,
            made.packs,
            made.inputs,
            made.donated,
            prepared.live,
            sizes[:-1],
            prepared.origins,
            made.checks,
            Timing(),
        )

    def _program(self, prepared: Prepared) -> Program:
        key = program_key(prepared.made.module)
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
            program = self.programs.get(key) or self._obtained(prepared, key)  # another thread may just be done
            self.programs[key] = program
            mine.set_result(program)
            return program
        except Exception as error:
            mine.set_exception(again(error))
            raise
        finally:
            mine.cancel()  # nothing to cancel unless an interrupt came
            del self._building[key]

    def _obtained(self, prepared: Prepared, key: str) -> Program:
        found = obtain(prepared.made.module, key, name=prepared.name)
        if found.compiled:
            self.metrics.compiled(found.milliseconds)
            debug.compiled(prepared.number, prepared.name, prepared.records, found.milliseconds)
        else:
            debug.loaded(prepared.number, prepared.name, prepared.records, found.milliseconds)
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


def _name(records: list[Any]) -> str:
    """The user's function that most of the program's records come from."""
    functions = [r.line.function for r in records if r.line is not None and not r.line.backward]
    most = max(functions, key=functions.count, default="program")
    return "main" if most == "<module>" else "".join(c if c.isalnum() or c == "_" else "_" for c in most)
