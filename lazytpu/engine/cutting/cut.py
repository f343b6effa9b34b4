"""One cut: a trace that ends, which of its values are alive, and which inputs its program may overwrite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lazytpu.trace.extract import Extracted
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import CutPlan

NAMELESS = 0  # the epoch of no trace: the values of a part have no names of parameters


@dataclass(slots=True)
class Cut:
    """A trace to run, with the `plan` of its state. A part of a trace that runs by itself is a cut of its own.

    1. `held` are the results of the trace that the script can still reach, by slot: a strategy gives each its `buffer`,
       or raises. `live` are their slots, in ascending order.
    2. `dead` are the indices of the inputs that no tensor can reach, and that nothing but this trace pins: a program
       may take their memory (R5). `kept` were among them, but cuts that wait to be launched need them as well.
    3. Until the first program is launched nothing has happened: the cut can be given up, and made again later.
    4. No strategy keeps a cut, as it keeps the values alive (R4). What is launched later gets a cut of its own, which
       holds no values; `pending` are then the buffers that are still needed, by slot.
    """

    plan: CutPlan
    trace: Trace
    held: list[tuple[int, Any]]
    live: tuple[int, ...]
    dead: tuple[int, ...]
    pending: dict[int, Any] | None = None
    kept: Sequence[int] = ()

    @staticmethod
    def of(plan: CutPlan, trace: Trace) -> Cut:
        """The cut of a whole trace, as its values are alive now."""
        values, buffers = trace.values, trace.buffers
        held = [(slot, v) for slot in plan.results if (v := values[slot]()) is not None]
        dead = [i for i, slot in enumerate(plan.inputs) if values[slot]() is None and buffers[i].pins == 1]
        return Cut(plan, trace, held, tuple([slot for slot, _ in held]), tuple(dead))

    def behind(self, held: list[tuple[int, Any]], pending: dict[int, Any]) -> Cut:
        """The same cut to be launched later, with something that keeps no value alive in place of each value."""
        return replace(self, trace=replace(self.trace, values=[]), held=held, pending=pending)

    def inputs(self) -> dict[int, Any]:
        """The buffers of the inputs by slot. Those of a deferred cut are shared with whoever launches a part ahead."""
        return dict(zip(self.plan.inputs, self.trace.buffers, strict=True)) if self.pending is None else self.pending


def part_of(trace: Trace, part: Extracted, buffers: dict[int, Any]) -> Trace:
    """A part of a trace as a trace of its own, with its inputs from the `buffers` by slot of the whole."""
    inputs = [buffers[slot] for slot in part.inputs]
    numbers = [trace.numbers[i] for i in part.numbers]
    return Trace(part.state, NAMELESS, inputs, numbers, [], trace.begun, trace.mode)
