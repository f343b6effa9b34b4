"""What a cut keeps of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lazytpu.aten.errors import Check
from lazytpu.aten.scalars import Packer
from lazytpu.engine.errors.lineage import Lineage
from lazytpu.engine.launching.inflight import Timing
from lazytpu.runtime.buffer import Origin
from lazytpu.runtime.chain import Chain
from lazytpu.runtime.program import Program
from lazytpu.runtime.resident import Form


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program as a cut needs it.

    `live` are the slots that it computes, `nbytes` the size of each, `origins` the op and line that made it. `donated`
    are the inputs (indices into the trace's) whose memory it takes; `lineage` says which results its checks concern.
    Its arguments are the packs of numbers at the positions `packs`, the trace's inputs `inputs`, and the flat ones of
    `resident`. Its results are the flat ones of `resident`, the live slots that are in none of these, and its status.
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
    resident: tuple[Resident, ...] = ()
    places: Mapping[int, Place] = field(default_factory=dict[int, "Place"])
    """Where the results of a program that takes flat arguments are, by slot; empty for all others, whose live slots are
    its results in that order."""

    @property
    def reads(self) -> tuple[int, ...]:
        """All inputs of the trace that it takes, in order."""
        if not self.resident:
            return self.inputs
        return tuple(sorted({*self.inputs, *(i for each in self.resident for i in each.inputs)}))


@dataclass(frozen=True, slots=True)
class Place:
    """Of one slot: the result `index` of the program, or, in `pack` (the how many-th flat one), the part `index`; and
    its `group` of the program's lineage."""

    pack: int | None
    index: int
    nbytes: int
    origin: Origin
    group: int


def places(
    live: Sequence[int],
    flat: Sequence[Sequence[int]],
    sizes: Sequence[int],
    origins: Sequence[Origin],
    groups: Sequence[int],
) -> dict[int, Place]:
    """The places of the slots `live` among the results of a program whose flat ones have the slots `flat`."""
    inside = {slot: (pack, index) for pack, slots in enumerate(flat) for index, slot in enumerate(slots)}
    found: dict[int, Place] = {}
    following = len(flat)
    for slot, nbytes, origin, group in zip(live, sizes, origins, groups, strict=True):
        pack, index = inside.get(slot, (None, following))
        following += pack is None
        found[slot] = Place(pack, index, nbytes, origin, group)
    return found


@dataclass(frozen=True, slots=True)
class Resident:
    """A flat argument, made of the inputs `inputs`, and the flat result in its memory, of the slots `slots`."""

    inputs: tuple[int, ...]
    slots: tuple[int, ...]
    form: Form
