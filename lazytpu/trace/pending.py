"""A trace between its first record and its cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lazytpu.trace.trie import State
from lazytpu.trace.value import Value


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace taken from the recorder by a cut: its last state, its input buffers, numbers and values, and its mode. If
    a read took it and left other records pending, `read` is the slot of the value that was read. `origin` is for a part
    of a trace whose sizes may vary: the epoch of the whole, and the part's slots by those of the whole."""

    state: State
    epoch: int
    buffers: list[Any]
    numbers: list[Any]
    values: list[Callable[[], Value | None]]
    begun: float
    mode: str = "lazy"
    read: int | None = None
    origin: tuple[int, Mapping[int, int]] | None = None


@dataclass(slots=True)
class Reads:
    """The state of host reads in a pending trace. An earlier read left the first `left` records pending. The first
    `boundary` records belong to finished steps that were not cut, as in lazy mode.
    `first_reads` has the length of the trace at the first read of each constant (see constants.py)."""

    left: int = 0
    boundary: int = 0
    first_reads: dict[Any, int] = field(default_factory=dict[Any, int])


NO_READS = Reads()
"Of a trace that nothing has read: it is not written."
