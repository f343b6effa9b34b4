"""After a cut that failed: what its ops overwrote has its old contents again, and what they made is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.trace.recorder import Trace
from lazytpu.trace.value import EMPTY, Value, again


@dataclass(frozen=True, slots=True)
class Lost:
    """What a failed cut cannot give back: `inputs` whose memory was donated to the run that failed, and `values` that
    the trace made, or that overwrote such an input."""

    values: list[Value]
    inputs: list[Buffer]

    def poison(self, error: BaseException) -> None:
        """Let every read of what is lost raise `error` again."""
        for buffer in self.inputs:
            buffer.error = again(error)
        for value in self.values:
            value.buffer = poisoned = Buffer(None, 0)
            poisoned.error = again(error)


def undo(trace: Trace, held: Sequence[tuple[int, Value]]) -> Lost:
    """Give the live values of a trace that did not run what their storages held before it.

    Inputs of a trace that could not even begin may be EMPTY again, or None where nothing has made them.
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
            old.pins += 1  # several values share it from now on: that one of them is dead proves nothing (R5)
    return Lost(values, inputs)


def before_trace(trace: Trace) -> tuple[dict[int, Any], dict[int, int]]:
    """What the trace's inputs hold, by slot, and for each slot that overwrites another the overwritten one."""
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
    """The first slot of the chain that `slot` ends, each overwriting the one before: itself, if it overwrites none."""
    while slot in predecessors:
        slot = predecessors[slot]
    return slot
