"""What a cut keeps of a program."""

from __future__ import annotations

from dataclasses import dataclass

from lazytpu.aten.failures import Check
from lazytpu.aten.scalars import Packer
from lazytpu.engine.inflight import Timing
from lazytpu.runtime.buffer import Origin
from lazytpu.runtime.program import Program


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program as a cut needs it.

    `live` are the slots of its results (its last result is the status); `packs` the positions of the packs it takes,
    `inputs` the indices of the trace's inputs it takes, after them; `donated` the inputs (indices into the trace's)
    whose memory it takes; `nbytes` the size of each result, `origins` the op and line that made it.
    """

    program: Program
    packer: Packer
    packs: tuple[int, ...]
    inputs: tuple[int, ...]
    donated: frozenset[int]
    live: tuple[int, ...]
    nbytes: tuple[int, ...]
    origins: tuple[Origin, ...]
    checks: tuple[Check, ...]
    timing: Timing
