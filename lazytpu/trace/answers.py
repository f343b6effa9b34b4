"""Host reads that run nothing: constants, and numbers that the host knows (see constants.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import prod
from typing import Any, Protocol

from lazytpu.trace.constants import LITTLE, ConstantReads, constant, cuts, key_of
from lazytpu.trace.extract import Extracted
from lazytpu.trace.pending import Reads, Trace
from lazytpu.trace.trie import Ended, State
from lazytpu.trace.value import Value


class Pending(Protocol):
    """The pending trace of a recorder, and its ways to answer."""

    answers: ConstantReads | None
    begun: float
    buffers: list[Any]
    epoch: int
    lock: Any
    mode: str
    numbers: list[Any]
    state: State
    values: list[Callable[[], Value | None]]

    def noted_reads(self) -> Reads:
        """Return the state of reads, for writing."""
        ...

    def leave(self, value: Value, buffer: Any) -> None:
        """Give a value its buffer, and let it leave the trace."""
        ...


def answer(r: Pending, value: Value) -> None:
    """Give a pending value of the trace its buffer if it is a constant, or a number that the host knows."""
    answers = r.answers
    with r.lock:
        state = r.state.parent if isinstance(r.state, Ended) else r.state
        if answers is None or value.epoch != r.epoch or prod(value.layout.shape) > LITTLE:
            return
        entry = constant(state, value.slot)
        if entry is None:
            return
        inputs = [r.buffers[i] for i in entry.part.sources if i is not None]
        if any(b is None or b.host is None for b in inputs):
            return
        numbers = [r.numbers[i] for i in entry.part.numbers]
        trace = Trace(entry.part.state, 0, inputs, numbers, [], time.perf_counter(), r.mode)
        if not all(b.constant for b in inputs):
            _compute_numbers(r, entry.part, trace, answers)
            return
        if cuts(entry, r.noted_reads().first_reads, state.depth):
            return
    buffer = answers.answer(key_of(entry, inputs, numbers), trace, entry.slot)
    r.begun += time.perf_counter() - trace.begun
    if buffer is not None:
        with r.lock:
            r.leave(value, buffer)


def _compute_numbers(r: Pending, part: Extracted, trace: Trace, answers: ConstantReads) -> None:
    """Compute all live values of a part, whose trace is given, on the host, if they are numbers that it knows."""
    alive: dict[int, Value] = {}
    for slot, origin in enumerate(part.origins):
        value = r.values[origin]()
        if value is not None and value.buffer is None and value.epoch == r.epoch:
            alive[slot] = value
    buffers = answers.numbers(trace, list(alive))
    for value, buffer in zip(alive.values(), buffers or (), strict=buffers is not None):
        r.leave(value, buffer)
