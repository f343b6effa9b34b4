"""Recomputation on purpose, as activation checkpointing wants it: values are computed anew, late, and not shared.

A region is what lies between the records `recompute_begin` and `recompute_end`. What it reads from outside it reads
through a barrier, so that neither our `cse` nor XLA's finds its ops equal to those of the first computation, whose
results would then be kept. The barrier also waits for a value that was made just before the region, usually the
gradient that asks for it, so that XLA does not compute the region early.

Parameters are read as they are: a cast of one, say, is the same everywhere, and may be shared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xdsl.ir import SSAValue

from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, is_complex, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazytpu.ir.builder import Builder

BEGIN, END = "lazytpu.recompute_begin.default", "lazytpu.recompute_end.default"


@rule(BEGIN, numbers=("ticket",))
def recompute_begin(b: Builder, saved: list[SSAValue], ticket: Any) -> tuple[()]:
    """Computes nothing: the importer asks `Recomputation`."""
    return ()


@rule(END)
def recompute_end(b: Builder) -> tuple[()]:
    """Computes nothing: the importer asks `Recomputation`."""
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
    """The regions that a trace is in, innermost last, and the slots of values that the trace itself made."""

    regions: list[_Region] = field(default_factory=list[_Region])
    made: set[int] = field(default_factory=set[int])
    last: SSAValue | None = None

    def begin(self, saved: Iterable[int], ticket: SSAValue) -> None:
        """A region starts; `saved` are the slots of its arguments, `ticket` a run-time number that is always 0."""
        self.regions.append(_Region(frozenset(saved), ticket, self.last))

    def end(self) -> None:
        """The innermost region ends, if the trace saw its beginning."""
        if self.regions:
            self.regions.pop()

    def produce(self, slot: int, memory: SSAValue) -> None:
        """`slot` holds a new value."""
        self.made.add(slot)
        self.last = memory
        for region in self.regions:
            region.inside.add(slot)

    def read(self, b: Builder, slot: int, memory: SSAValue) -> SSAValue:
        """What a record reads from `slot`, whose array is `memory`."""
        for region in self.regions:
            if slot in region.inside or (slot not in region.saved and slot not in self.made):
                continue
            found = region.read.get(slot)
            if found is None:
                found = region.read[slot] = _barrier(b, memory, region)
            memory = found
        return memory


def _barrier(b: Builder, x: SSAValue, region: _Region) -> SSAValue:
    shape = shape_of(x)
    if region.after is None or 0 in shape:
        return x
    (result,) = b.template("recompute", [x, _first(b, region.after), region.ticket], [(dtype_of(x), shape)])
    return result


def _first(b: Builder, x: SSAValue) -> SSAValue:
    """The first element, 0-d: enough to wait for all of them."""
    shape = shape_of(x)
    if 0 in shape:
        return b.constant(0, dtype_of(x))
    first = b.reshape(b.slice(x, [0] * len(shape), [1] * len(shape)), ())
    return b.unary("real", first) if is_complex(dtype_of(first)) else first
