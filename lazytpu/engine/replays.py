"""Runs a compiled program on given buffers, without a trace: the device's half of a captured call."""

from __future__ import annotations

import time
from typing import Any

from lazytpu.engine.compiled import Compiled
from lazytpu.engine.engine import Engine
from lazytpu.engine.failures import explain
from lazytpu.runtime.buffer import MEMORY, Buffer
from lazytpu.runtime.errors import OutOfMemory
from lazytpu.trace.trie import State
from lazytpu.trace.value import again

MEASURED = 8  # of this many runs, one may be measured: a captured call costs the host as much as measuring one does


class Replay:
    """One program as captured calls run it. `state` is where its trace ended, for messages."""

    def __init__(self, engine: Engine, compiled: Compiled, state: State):
        self.engine = engine
        self.compiled = compiled
        self.state = state
        self._constant: list[Any] | None = None
        self._runs = 0

    def pack(self, numbers: list[Any], constant: bool) -> list[Any]:
        """The arrays of the run-time numbers; `constant` numbers are sent once."""
        if constant and self._constant is not None:
            return self._constant
        compiled = self.compiled
        if not compiled.packs:
            return []
        packs = compiled.packer(numbers)
        arrays = [self.engine.packs.upload(packs[i]) for i in compiled.packs]
        if constant:
            self._constant = arrays
        return arrays

    def run(self, arrays: list[Any], given: list[Buffer]) -> list[Any]:
        """Launch the program; `given` are the buffers whose memory it takes, which the caller fills anew.

        When it fails, those of `given` that are lost keep the error, all others are as they were, and it is raised.
        """
        start = time.perf_counter()
        compiled, engine = self.compiled, self.engine
        program = compiled.program
        memory = program.memory
        self._runs += 1
        launch = None
        if self._runs % MEASURED:
            engine.metrics.device_ms += compiled.timing.last_ms
        else:
            launch = engine.inflight.begin(compiled.timing)
        try:
            MEMORY.note_execution(memory.temporaries, memory.outputs, memory.aliased)
            results = program.run(arrays)
        except BaseException as error:
            arrays.clear()  # the error's frames hold this list
            lost = [buffer for buffer in given if buffer.taken()]
            told = engine.exhausted(error, "run", compiled) if isinstance(error, OutOfMemory) else error
            failure = explain(told, self.state, True, len(lost))
            for buffer in lost:
                buffer.release()
                buffer.error = again(failure)
            if failure is error:
                raise
            raise failure from error
        ran = engine.inflight.run(compiled.lineage, compiled.checks, (), False)
        engine.inflight.add(ran, results[-1], compiled.timing, launch)
        metrics = engine.metrics
        metrics.steps += 1
        metrics.hits += 1
        metrics.replays += 1
        metrics.launch_ms += 1e3 * (time.perf_counter() - start)
        return results
