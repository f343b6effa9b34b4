"""Recomputation for activation checkpointing: values are computed again, late, and not shared with their first result.

A region consists of the records between `recompute_begin` and `recompute_end`. It reads values from outside through a
barrier, so that neither our `cse` nor XLA's merges its ops with those of the first computation, whose results would
then stay alive. The barrier also waits for the last value before the region, usually the gradient that needs it, so
that XLA does not run the region early.

Parameters need no barrier: the cast of a parameter, for example, is the same everywhere and may be shared.

FSDP2 gathers the parameters of a layer again for the backward pass, so that they need not stay in memory from the
forward pass on. The second gather reads its operand through a barrier, too (`again`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xdsl.ir import Operation, SSAValue

from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, is_complex, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazytpu.ir.builder import Builder

MAX_SOURCES = 1024  # values: bounds the search in a long trace
BEGIN, END = "lazytpu.recompute_begin.default", "lazytpu.recompute_end.default"
GATHER = "lazytpu_dist.all_gather.default"


@rule(BEGIN, numbers=("ticket",))
def recompute_begin(b: Builder, saved: list[SSAValue], ticket: Any) -> tuple[()]:
    """Computes nothing: the importer keeps track in `Recomputation`."""
    return ()


@rule(END)
def recompute_end(b: Builder) -> tuple[()]:
    """Computes nothing: the importer keeps track in `Recomputation`."""
    return ()


@dataclass
class _Region:
    saved: frozenset[int]
    ticket: SSAValue
    after: SSAValue | None
    inside: set[int] = field(default_factory=set[int])
    read: dict[int, SSAValue] = field(default_factory=dict[int, SSAValue])


@dataclass
class Recomputation:
    """The regions open in a trace, innermost last, and the slots of the values it has produced so far."""

    regions: list[_Region] = field(default_factory=list[_Region])
    produced: set[int] = field(default_factory=set[int])
    values: list[SSAValue] = field(default_factory=list[SSAValue])
    read_before: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]])

    @property
    def last(self) -> SSAValue | None:
        """The last value that was produced."""
        return self.values[-1] if self.values else None

    def begin(self, saved: Iterable[int], ticket: SSAValue) -> None:
        """Enter a region. `saved` are the slots of its arguments, `ticket` is a run-time number that is always 0."""
        self.regions.append(_Region(frozenset(saved), ticket, self.last))

    def end(self) -> None:
        """Leave the innermost region, if it began in this trace."""
        if self.regions:
            self.regions.pop()

    def produce(self, slot: int, memory: SSAValue) -> None:
        """Note that `slot` holds a new value, whose array is `memory`."""
        self.produced.add(slot)
        self.values.append(memory)
        for region in self.regions:
            region.inside.add(slot)

    def read(self, b: Builder, slot: int, memory: SSAValue) -> SSAValue:
        """The array that a record reads from `slot`: `memory`, or a barrier over it."""
        for region in self.regions:
            if slot in region.inside or (slot not in region.saved and slot not in self.produced):
                continue
            copy = region.read.get(slot)
            if copy is None:
                copy = region.read[slot] = _barrier(b, memory, region)
            memory = copy
        return memory


    def again(self, b: Builder, x: SSAValue, key: tuple[object, ...], late: bool) -> SSAValue:
        """x, or a barrier over it if an operand with this key was read before, and x is read `late`, in the backward
        pass. The barrier waits for the last value that x is not computed from."""
        if not late or key not in self.read_before or 0 in shape_of(x):
            self.read_before.add(key)
            return x
        sources = _sources(x)
        after = next((value for value in reversed(self.values) if value not in sources), None)
        if after is None:
            return x
        return b.template("read_again", [x, _first(b, after)], [(dtype_of(x), shape_of(x))])[0]


def _sources(x: SSAValue) -> set[SSAValue]:
    """The values that x is computed from, and x: at most the nearest MAX_SOURCES."""
    sources: set[SSAValue] = {x}
    pending = deque([x])
    while pending and len(sources) < MAX_SOURCES:
        owner = pending.popleft().owner
        for operand in owner.operands if isinstance(owner, Operation) else ():
            if operand not in sources:
                sources.add(operand)
                pending.append(operand)
    return sources


def _barrier(b: Builder, x: SSAValue, region: _Region) -> SSAValue:
    shape = shape_of(x)
    if region.after is None or 0 in shape:
        return x
    (result,) = b.template("recompute", [x, _first(b, region.after), region.ticket], [(dtype_of(x), shape)])
    return result


def _first(b: Builder, x: SSAValue) -> SSAValue:
    """The first element, 0-d: waiting for it means waiting for all."""
    shape = shape_of(x)
    if 0 in shape:
        return b.constant(0, dtype_of(x))
    first = b.reshape(b.slice(x, [0] * len(shape), [1] * len(shape)), ())
    return b.unary("real", first) if is_complex(dtype_of(first)) else first
