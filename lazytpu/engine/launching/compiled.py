"""A compiled program that runs itself: `launch` is the one place where arguments become results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from math import prod
from typing import Any

from lazytpu.aten.errors import Check
from lazytpu.engine.errors.lineage import Lineage, lineage
from lazytpu.engine.errors.origins import origins
from lazytpu.engine.launching.inflight import Inflight, Timing
from lazytpu.engine.launching.packs import Packs
from lazytpu.engine.programs.binding import Binding
from lazytpu.runtime.buffers.buffer import MEMORY, Buffer, Origin
from lazytpu.runtime.buffers.custom_layout import arrays_of, buffer_of
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.chain import Chain
from lazytpu.runtime.xla.program import Program
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import CutPlan, Record


@dataclass(frozen=True, slots=True)
class Queue:
    """What programs are launched on: the runs in flight, and the packs of numbers that the device has already."""

    inflight: Inflight
    packs: Packs


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A program of a trace, ready to run, as a whole or as a chain of its parts.

    `binding` says what it takes and gives. Of each result there are its size (`nbytes`) and the op and line that made
    it (`origins`); `lineage` says which results each check concerns.
    """

    program: Program | Chain
    binding: Binding
    nbytes: tuple[int, ...]
    origins: tuple[Origin, ...]
    lineage: Lineage
    queue: Queue
    timing: Timing = field(default_factory=Timing)

    @classmethod
    def of(
        cls, program: Program | Chain, binding: Binding, records: Sequence[Record], name: str, queue: Queue
    ) -> Compiled:
        """A program with its binding to a trace of these records, whose source lines are those of its results."""
        slots = Slots(records)
        results = binding.signature(records).results
        sizes = [dtype.itemsize * prod(shape) for dtype, shape in results[:-1]]
        made_by = origins(records, binding.live, name)
        depends = lineage(records, slots, binding.live, binding.checks)
        return cls(program, binding, tuple(sizes), made_by, depends, queue)

    def launch(
        self,
        buffers: Sequence[Buffer],
        numbers: list[Any],
        checks: tuple[Check, ...] | None = None,
        alone: bool = False,
    ) -> list[Buffer]:
        """Run the program on a trace's inputs and run-time numbers: the buffers of its results, in the order of
        `binding.live`. This waits for nothing (`Inflight.keep_up` does, when the results have their places); donated
        inputs are released.

        `checks` are those of the program with other source lines. What fails is told to whoever reads a result that
        depends on it. `alone` says that this is one op, not a step: a check of what its inputs hold may still come.

        Raises RunError, and OutOfMemory when there is no room; `RunError.lost` says which inputs are gone.
        """
        return self._launch(self.binding.checks if checks is None else checks, buffers, numbers, alone)[0]

    def launch_watched(self, buffers: Sequence[Buffer], numbers: list[Any]) -> tuple[list[Buffer], Any]:
        """As `launch`; besides, an array that is there when the program is done."""
        return self._launch(self.binding.checks, buffers, numbers, False)

    def evaluate(self, buffers: Sequence[Buffer], numbers: list[Any]) -> list[Buffer] | None:
        """As `launch`, but wait for the checks: None when one fails, which is told to nobody."""
        results, status = self._launch((), buffers, numbers, True)
        if self.binding.checks and not client.to_host(status, copy=False).all():
            return None
        return results

    def _launch(
        self, checks: tuple[Check, ...], buffers: Sequence[Buffer], numbers: list[Any], alone: bool
    ) -> tuple[list[Buffer], Any]:
        """The buffers of the results, and the array of the status."""
        binding, program, lineage, inflight = self.binding, self.program, self.lineage, self.queue.inflight
        run = inflight.run(lineage, checks, buffers, alone)
        arguments: list[Any] = []
        if binding.packs:
            packs, upload = binding.packer(numbers), self.queue.packs.upload
            arguments.extend([upload(packs[i]) for i in binding.packs])
        self._add_inputs(arguments, buffers)
        memory = program.memory
        MEMORY.note_execution(memory.temporaries, memory.outputs, memory.aliased)
        measured = inflight.begin(self.timing)
        arrays = program.run(arguments)
        for i in binding.donated:
            buffers[i].release()
        outcomes = run.outcomes
        each = repeat(outcomes[0]) if len(outcomes) == 1 else map(outcomes.__getitem__, lineage.of)
        results = self._results(arrays, each)
        status = arrays[-1]
        inflight.add(run, status, self.timing, measured)
        return results, status

    def _add_inputs(self, arguments: list[Any], buffers: Sequence[Buffer]) -> None:
        """Add the arrays of inputs to the packs among the arguments."""
        layouts = self.program.layouts
        if layouts is None:
            arguments.extend([buffers[i].array for i in self.binding.inputs])
        else:
            wanted = layouts.arguments[len(arguments) :]
            arguments.extend(arrays_of([buffers[i] for i in self.binding.inputs], wanted))

    def _results(self, arrays: Sequence[Any], outcomes: Iterable[Any]) -> list[Buffer]:
        """The buffers of the results, each with the outcome of what made it."""
        layouts = self.program.layouts
        if layouts is None:
            return list(map(Buffer, arrays, self.nbytes, self.origins, outcomes))
        return list(map(buffer_of, layouts.results, arrays, self.nbytes, self.origins, outcomes))


def fitting(plan: CutPlan, live: tuple[int, ...], dead: tuple[int, ...]) -> Compiled | None:
    """A program that computes at least `live` and takes the memory of at most `dead`: the one with the fewest extra
    results. So it never depends on the timing of garbage collection whether a cut compiles (R4)."""
    needed, free = frozenset(live), frozenset(dead)
    programs: list[Compiled] = list(plan.programs.values())  # at once: another thread may add one
    fits = [c for c in programs if needed.issubset(c.binding.live) and c.binding.donated <= free]
    return min(fits, key=lambda c: (len(c.binding.live), -len(c.binding.donated)), default=None)
