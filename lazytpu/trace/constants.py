"""Host reads of values that depend on constants alone: each is computed once and remembered.

A library may read what it computed itself, such as a mask of positions, to decide what to do next. A read of such a
value cuts nothing, and the second time it launches nothing and waits for nothing. A constant depends only on numbers,
on memory that nothing has written, and on constants that were read before; not on data of the device or of other
processes, and not on random numbers. Run-time numbers are part of the key under which it is remembered, by their bits.

At its first read a constant is computed beside the trace, whose program may compute it again. So only cheap values
count as constants, and only a few per trace: a loop that computes with constants alone and reads in each iteration
would otherwise recompute from its start in each. And in a loop that nothing else cuts, such as a loop of forward
passes, reads of constants do cut.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from lazytpu.trace.extract import Extracted, Slots, extract, operands
from lazytpu.trace.loops import FIRST as LOOP
from lazytpu.trace.trie import Record, State
from lazytpu.trace.value import DeviceBuffer

LITTLE = 1024  # elements of a constant, which is kept on the host and on the device: what code branches on is small
RECORDS = 64  # in the computation of a constant: about 0.3 s of compiling, once
ELEMENTS = 1 << 24  # of all its intermediate results: milliseconds
REACH = 1024  # records of the trace that are searched, so that a read costs the same in a long trace
WAYS = 8  # different computations of constants in one trace before a read cuts it


@dataclass(frozen=True, slots=True)
class Constant:
    """How a value is computed by itself: as the slot `slot` of a part of the trace. The `part` is the same for all
    traces with the same computation. Its inputs have to be constant, too."""

    part: Extracted
    slot: int

    @property
    def way(self) -> tuple[State, int]:
        """The identity of its computation."""
        return self.part.state, self.slot


class ConstantReads(Protocol):
    """The constants known so far."""

    def answer(self, key: Any, trace: Any, slot: int) -> DeviceBuffer | None:
        """The constant in `slot` of a trace, computed at its first read; `key` identifies it. None when it cannot be
        computed: the read then cuts, and raises the error. Raises an earlier failure of the device."""
        ...


def constant(state: State, slot: int) -> Constant | None:
    """How the value of `slot` in the trace at `state` is computed by itself, if it may be a constant; determined once
    for a state. The caller checks that its inputs are constant."""
    if slot not in state.constants:
        state.constants = {**state.constants, slot: _find(state, slot)}
    return state.constants[slot]


def cuts(constant: Constant, first_reads: dict[Any, int], depth: int) -> bool:
    """Whether a read cuts although the value may be a constant. `first_reads` has the length of the trace at the first
    read of each computation; now the trace is `depth` records long."""
    return depth - first_reads.setdefault(constant.way, depth) > LOOP or len(first_reads) > WAYS


def key_of(constant: Constant, buffers: Sequence[DeviceBuffer], numbers: Sequence[Any]) -> Any:
    """What a constant depends on: its computation, these inputs and these numbers."""
    return constant.way, tuple(buffers), tuple([_bits(number) for number in numbers])


def _bits(number: Any) -> Any:
    """A number by its type and bits: NaN equals itself, and -0.0 is not 0.0 (R2)."""
    if isinstance(number, float):
        return type(number), struct.pack("<d", number)
    if isinstance(number, complex):
        return type(number), struct.pack("<dd", number.real, number.imag)
    return type(number), number


def _find(state: State, slot: int) -> Constant | None:
    """Searches back from the end of the trace for everything that the value depends on."""
    if state.traits.checks:  # the next read reports what they find, so it has to wait for them
        return None
    needed, chosen, known, size = {slot}, list[Record](), Slots(()), 0
    at = state
    for _ in range(REACH):
        parent = at.parent
        if len(at.recorded) != 1 or parent is None:  # a compiled graph is no constant, and nothing is read through it
            return None
        (record,) = at.recorded
        produced = set(record.out_slots).union(*record.written.values())
        if not needed.isdisjoint(produced):
            size += sum(prod(layout.shape) for layout in record.outs if layout is not None)
            if record.rng is not None or record.collective or len(chosen) == RECORDS:
                return None
            chosen.append(record)
            needed -= produced
            needed.update(o.slot for argument in record.arguments.values() for o in operands(argument))
        index = parent.inputs
        for admitted, layout, empty in record.admitted:
            if admitted in needed:
                needed.discard(admitted)
                size += prod(layout.shape)
                known.admit(admitted, layout, None if empty else index)
            index += not empty
        if size > ELEMENTS:
            return None
        if not needed:
            break
        at = parent
    else:
        return None
    chosen.reverse()
    part = extract(chosen, range(len(chosen)), known)
    return Constant(part, part.slots[slot])
