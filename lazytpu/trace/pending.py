"""A trace between its first record and its cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lazytpu.trace.trie import State
from lazytpu.trace.value import Value


@dataclass(frozen=True, slots=True)
class Trace:
    """What a cut takes from the recorder: the state that the trace ended in, its input buffers, numbers and values, and
    the mode it was recorded in. If a read took it, which has left the rest pending, `read` is the slot of its value."""

    state: State
    epoch: int
    buffers: list[Any]
    numbers: list[Any]
    values: list[Callable[[], Value | None]]
    begun: float
    mode: str = "lazy"
    read: int | None = None


@dataclass(slots=True)
class Reads:
    """What host reads need to know of a pending trace. One has left part of a trace pending: the first `left` records.
    The first `boundary` records belong to steps that are over, though nothing was cut there, as in lazy mode.
    `first_reads` has the length of the trace at the first read of each constant (see constants.py)."""

    left: int = 0
    boundary: int = 0
    first_reads: dict[Any, int] = field(default_factory=dict[Any, int])


NO_READS = Reads()
"Of a trace that nothing has read: it is not written."
