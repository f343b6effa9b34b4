"""Host reads of constants: values that depend on nothing but constants are computed once and cached.

A library may read a value that it computed itself, such as a mask of positions, to decide its next step. Such a read
causes no cut. The second read of the same constant launches nothing and waits for nothing.

A constant depends only on numbers, on memory that nothing has written, and on constants read before. It does not depend
on device data, other processes, or random numbers. The bits of its run-time numbers are part of its key in the cache.

The first read computes a constant separately from the trace, whose program may compute it again. So only cheap values
qualify, and only a few per trace. Otherwise a loop that computes and reads nothing but constants would restart its
computation in each iteration. In a loop without other cuts, such as a loop of forward passes, reads of constants do
cut.

Numbers are read without the device as well: single elements that the host uploaded, and results of exact ops on them,
such as the `step` of an optimizer that was loaded onto the device. The host computes these at the read. Such a read
never cuts, as if the number had stayed on the host.
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

# Maximum elements of a constant, which is kept on the host and on the device; values that code branches on are small.
LITTLE = 1024
RECORDS = 64  # maximum records in the computation of a constant: about 0.3 s of compiling, once
ELEMENTS = 1 << 24  # maximum elements of all its intermediate results: milliseconds
REACH = 1024  # maximum records that are searched, so that a read costs the same in a long trace
WAYS = 8  # maximum distinct constants that are read in one trace before a read cuts it


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that can be computed separately: slot `slot` of the extracted trace `part`, whose inputs must be
    constants, too.

    All traces with the same computation share the `part`.
    """

    part: Extracted
    slot: int

    @property
    def way(self) -> tuple[State, int]:
        """The identity of the computation."""
        return self.part.state, self.slot


class ConstantReads(Protocol):
    """The cache of constants, and the host that computes numbers."""

    def numbers(self, trace: Any, wanted: Sequence[int]) -> Sequence[DeviceBuffer] | None:
        """Return the buffers of the slots `wanted` of a trace, with their elements on the host.

        Returns None unless all values are single elements, and the host computes the trace's ops with the same bits as
        the device.
        """
        ...

    def answer(self, key: Any, trace: Any, slot: int) -> DeviceBuffer | None:
        """Return the constant in `slot` of a trace; its first read computes it. `key` identifies it.

        Returns None when it cannot be computed; the read then cuts, and raises the error. Raises an earlier failure of
        the device.
        """
        ...


def constant(state: State, slot: int) -> Constant | None:
    """Return the computation of `slot` in the trace at `state` if it may be a constant, else None.

    The result is cached in the state. The caller checks that the inputs are constants.
    """
    if slot not in state.constants:
        state.constants = {**state.constants, slot: _find(state, slot)}
    return state.constants[slot]


def cuts(constant: Constant, first_reads: dict[Any, int], depth: int) -> bool:
    """Return whether a read cuts although the value may be a constant.

    `first_reads` maps each computation to the length of the trace at its first read. The trace is `depth` records long
    now.
    """
    return depth - first_reads.setdefault(constant.way, depth) > LOOP or len(first_reads) > WAYS


def key_of(constant: Constant, buffers: Sequence[DeviceBuffer], numbers: Sequence[Any]) -> Any:
    """Return the cache key of a constant: its computation, its inputs, and its numbers."""
    return constant.way, tuple(buffers), tuple([_bits(number) for number in numbers])


def _bits(number: Any) -> Any:
    """Return a number as its type and bits, so that NaN equals itself, and -0.0 differs from 0.0 (R2)."""
    if isinstance(number, float):
        return type(number), struct.pack("<d", number)
    if isinstance(number, complex):
        return type(number), struct.pack("<dd", number.real, number.imag)
    return type(number), number


def _find(state: State, slot: int) -> Constant | None:
    """Search backwards from the end of the trace for all records that the value depends on."""
    if state.traits.checks:  # the next read reports their results, so it must wait for them
        return None
    needed, chosen, slots, size = {slot}, list[Record](), Slots(()), 0
    at = state
    for _ in range(REACH):
        parent = at.parent
        if len(at.recorded) != 1 or parent is None:  # stop at a compiled graph: its values are not treated as constants
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
                slots.admit(admitted, layout, None if empty else index)
            index += not empty
        if size > ELEMENTS:
            return None
        if not needed:
            break
        at = parent
    else:
        return None
    chosen.reverse()
    extracted = extract(chosen, range(len(chosen)), slots)
    return Constant(extracted, extracted.slots[slot])
