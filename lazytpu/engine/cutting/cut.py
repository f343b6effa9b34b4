"""A cut: a trace that ends, its live values, and the inputs that its program may donate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lazytpu.trace.extract import Extracted
from lazytpu.trace.pending import Trace
from lazytpu.trace.trie import CutPlan

NAMELESS = 0  # an epoch that no trace has: the values of a part have no parameter names


@dataclass(slots=True)
class Cut:
    """A trace to run, with the `plan` of its state. A part of a trace that runs by itself is a cut of its own.

    1. `held` are the results of the trace that the script can still reach, with their slots. A strategy sets the
       `buffer` of each, or raises. `live` are their slots, in ascending order.
    2. `dead` are the indices of inputs that no tensor can reach and only this trace pins: a program may donate them
       (R5). `kept` are indices removed from `dead`, since cuts waiting to be launched need these inputs as well.
    3. Until the first program is launched there are no effects: the cut can be abandoned and made again later.
    4. No strategy stores a cut, since the cut keeps values alive (R4). A deferred launch gets a cut of its own that
       holds no values. `pending` are then the buffers that are still needed, by slot.
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
        """Return the cut of a whole trace with its currently live values and dead inputs."""
        values, buffers = trace.values, trace.buffers
        held = [(slot, v) for slot in plan.results if (v := values[slot]()) is not None]
        dead = [i for i, slot in enumerate(plan.inputs) if values[slot]() is None and buffers[i].pins == 1]
        return Cut(plan, trace, held, tuple([slot for slot, _ in held]), tuple(dead))

    def behind(self, held: list[tuple[int, Any]], pending: dict[int, Any]) -> Cut:
        """Return this cut for a deferred launch, with `held` replaced by objects that keep no value alive."""
        return replace(self, trace=replace(self.trace, values=[]), held=held, pending=pending)

    def inputs(self) -> dict[int, Any]:
        """Return the input buffers by slot. For a deferred cut the dict is shared with threads that launch parts of it
        ahead."""
        return dict(zip(self.plan.inputs, self.trace.buffers, strict=True)) if self.pending is None else self.pending


def part_of(trace: Trace, part: Extracted, buffers: dict[int, Any]) -> Trace:
    """Return a part of a trace as a trace of its own, with inputs from `buffers`, which the whole trace has by slot."""
    inputs = [buffers[slot] for slot in part.inputs]
    numbers = [trace.numbers[i] for i in part.numbers]
    return Trace(part.state, NAMELESS, inputs, numbers, [], trace.begun, trace.mode)
