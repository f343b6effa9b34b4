"""A compiled program bound to a trace: `launch` is the only place where arguments become results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from math import prod
from typing import Any

from lazytpu.aten.errors import Check
from lazytpu.engine.errors.lineage import Lineage, lineage
from lazytpu.engine.errors.origins import origins
from lazytpu.engine.launching.collective_order import CollectiveOrder, Members
from lazytpu.engine.launching.inflight import Inflight, Timing
from lazytpu.engine.launching.packs import Packs
from lazytpu.engine.programs.binding import Binding
from lazytpu.runtime.buffers.buffer import MEMORY, Buffer, Origin
from lazytpu.runtime.buffers.custom_layout import arrays_of, buffer_of
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.chain import Chain
from lazytpu.runtime.xla.program import Program
from lazytpu.timeline import LAUNCH, TIMELINE
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import CutPlan, Record


@dataclass(frozen=True, slots=True)
class Queue:
    """The shared launch state: the runs in flight, the packs of numbers already on the device, and the order of
    collectives."""

    inflight: Inflight
    packs: Packs
    collectives: CollectiveOrder = field(default_factory=CollectiveOrder)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Compiled:
    """A compiled program of a trace, whole or as a chain of parts.

    `binding` describes its arguments and results. `nbytes` has the size of each result, and `origins` the op and line
    that computed it. `lineage` says which results each check affects.
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
        """Return a program bound to a trace of these records; errors name the source lines of the records."""
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
        """Run the program and return the buffers of its results, in the order of `binding.live`.

        The call does not wait for the device (`Inflight.keep_up` does, once the results are assigned), and releases
        donated inputs. `checks` are the program's checks with other source lines. A failure is reported to whoever
        reads a dependent result. With `alone` this is a single op, so a check of its inputs' values may still be
        pending.

        Raise RunError, and OutOfMemory if there is no room; `RunError.lost` lists the inputs that no longer exist.
        """
        return self._launch(self.binding.checks if checks is None else checks, buffers, numbers, alone)[0]

    def launch_watched(
        self, buffers: Sequence[Buffer], numbers: list[Any], groups: Iterable[Members]
    ) -> tuple[list[Buffer], Any]:
        """Run a program with collectives as `launch`, and also return an array that is ready when it is done. `groups`
        has the ranks of each collective."""
        return self.queue.collectives.run(groups, lambda: self._launch(self.binding.checks, buffers, numbers, False))

    def evaluate(self, buffers: Sequence[Buffer], numbers: list[Any]) -> list[Buffer] | None:
        """Run as `launch`, and wait for the checks. Return None if one fails; this is not reported."""
        results, status = self._launch((), buffers, numbers, True)
        if self.binding.checks and not client.to_host(status, copy=False).all():
            return None
        return results

    def _launch(
        self, checks: tuple[Check, ...], buffers: Sequence[Buffer], numbers: list[Any], alone: bool
    ) -> tuple[list[Buffer], Any]:
        """Run the program; return the buffers of the results and the status array."""
        binding, program, lineage, inflight = self.binding, self.program, self.lineage, self.queue.inflight
        run = inflight.run(lineage, checks, buffers, alone)
        arguments: list[Any] = []
        if binding.packs:
            packs, upload = binding.packer(numbers), self.queue.packs.upload
            arguments.extend([upload(packs[i]) for i in binding.packs])
        self._add_inputs(arguments, buffers)
        memory = program.memory
        MEMORY.note_execution(memory.temporaries, memory.outputs, memory.aliased)
        if TIMELINE.collecting is None:
            measured = inflight.begin(self.timing)
            arrays = program.run(arguments)
        else:
            with TIMELINE.host_range(LAUNCH + program.name):
                measured = inflight.begin(self.timing)
                arrays = program.run(arguments)
        for i in binding.donated:
            buffers[i].release()
        outcomes = run.outcomes
        result_outcomes = repeat(outcomes[0]) if len(outcomes) == 1 else map(outcomes.__getitem__, lineage.of)
        results = self._results(arrays, result_outcomes)
        status = arrays[-1]
        inflight.add(run, status, self.timing, measured, program.name)
        return results, status

    def _add_inputs(self, arguments: list[Any], buffers: Sequence[Buffer]) -> None:
        """Append the arrays of the inputs to the arguments."""
        layouts = self.program.layouts
        if layouts is None:
            arguments.extend([buffers[i].array for i in self.binding.inputs])
        else:
            wanted = layouts.arguments[len(arguments) :]
            arguments.extend(arrays_of([buffers[i] for i in self.binding.inputs], wanted))

    def _results(self, arrays: Sequence[Any], outcomes: Iterable[Any]) -> list[Buffer]:
        """Return the buffers of the results, each with its outcome."""
        layouts = self.program.layouts
        if layouts is None:
            return list(map(Buffer, arrays, self.nbytes, self.origins, outcomes))
        return list(map(buffer_of, layouts.results, arrays, self.nbytes, self.origins, outcomes))


def fitting(plan: CutPlan, live: tuple[int, ...], dead: tuple[int, ...]) -> Compiled | None:
    """Return the program that computes at least `live`, donates at most `dead` and has the fewest extra results; None
    if there is none.

    Thus the timing of garbage collection never decides whether a cut compiles (R4).
    """
    needed, free = frozenset(live), frozenset(dead)
    programs: list[Compiled] = list(plan.programs.values())  # a snapshot: another thread may add one
    fits = [c for c in programs if needed.issubset(c.binding.live) and c.binding.donated <= free]
    return min(fits, key=lambda c: (len(c.binding.live), -len(c.binding.donated)), default=None)
