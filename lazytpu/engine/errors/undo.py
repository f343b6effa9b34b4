"""Restoration after a failed cut: values that its ops overwrote get their old contents, and its other
results are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.trace.pending import Trace
from lazytpu.trace.value import EMPTY, Value, again


@dataclass(frozen=True, slots=True)
class Lost:
    """Values that a failed cut cannot restore: `inputs` whose memory was donated to the failed run, and `values` that
    the trace computed, or that overwrote such an input."""

    values: list[Value]
    inputs: list[Buffer]

    def poison(self, error: BaseException) -> None:
        """Make every read of a lost value raise `error` again."""
        for buffer in self.inputs:
            buffer.error = again(error)
        for value in self.values:
            value.buffer = poisoned = Buffer(None, 0)
            poisoned.error = again(error)


def undo(trace: Trace, held: Sequence[tuple[int, Value]]) -> Lost:
    """Restore the live values of a trace that did not run to the contents of their storages before it.

    Inputs of a trace that could not start may be EMPTY, or None if nothing has computed them.
    """
    real = [b for b in trace.buffers if b is not None and b is not EMPTY]
    inputs = [b for b in real if b.taken()]
    for buffer in inputs:
        buffer.release()
    contents, predecessors = before_trace(trace)
    roots = [root_of(slot, predecessors) for slot, _ in held]
    users = Counter(roots)
    values: list[Value] = []
    for (_, value), root in zip(held, roots, strict=True):
        old = contents.get(root)
        if old is None or (old is not EMPTY and old.gone()):
            values.append(value)
            continue
        value.buffer = old
        if old is not EMPTY and (users[root] > 1 or trace.values[root]() is not None):
            old.pins += 1  # several values share it from now on, so one dead value is no reason to donate it (R5)
    return Lost(values, inputs)


def before_trace(trace: Trace) -> tuple[dict[int, Any], dict[int, int]]:
    """Return the contents of the trace's inputs by slot, and for each slot that overwrites another one the overwritten
    slot."""
    contents: dict[int, Any] = {}
    predecessors: dict[int, int] = {}
    buffers = iter(trace.buffers)
    for record in trace.state.records():
        for slot, _, empty in record.admitted:
            contents[slot] = EMPTY if empty else next(buffers)
        for name, slots in record.written.items():
            argument = record.arguments[name]
            operands = argument if isinstance(argument, list) else [argument]
            predecessors.update((slot, operand.slot) for slot, operand in zip(slots, operands, strict=True))
    return contents, predecessors


def root_of(slot: int, predecessors: dict[int, int]) -> int:
    """Return the first slot in the chain of overwritten slots that ends in `slot`; `slot` itself if it
    overwrites none."""
    while slot in predecessors:
        slot = predecessors[slot]
    return slot
