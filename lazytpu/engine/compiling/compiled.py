"""What a cut keeps of a program."""

from __future__ import annotations

from dataclasses import dataclass

from lazytpu.aten.errors import Check
from lazytpu.aten.scalars import Packer
from lazytpu.engine.errors.lineage import Lineage
from lazytpu.engine.launching.inflight import Timing
from lazytpu.runtime.buffer import Origin
from lazytpu.runtime.chain import Chain
from lazytpu.runtime.program import Program


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program as a cut needs it.

    `live` are the slots that it computes, `nbytes` the size of each, `origins` the op and line that made it. `donated`
    are the inputs (indices into the trace's) whose memory it takes; `lineage` says which results its checks concern.
    Its arguments are the packs of numbers at the positions `packs` and the trace's inputs `inputs`. Its results are the
    live slots, then its status.
    """

    program: Program | Chain
    packer: Packer
    packs: tuple[int, ...]
    inputs: tuple[int, ...]
    donated: frozenset[int]
    live: tuple[int, ...]
    nbytes: tuple[int, ...]
    origins: tuple[Origin, ...]
    checks: tuple[Check, ...]
    timing: Timing
    lineage: Lineage
