"""Host reads of values that constants alone decide: they are computed once and known from then on.

A library looks at what it made itself, such as a mask of positions, to choose what it does next. A read of such a value
cuts nothing, and the second time it launches nothing and waits for nothing. A constant is what follows from numbers,
from memory that nothing has written, and from constants that were read before; not from data of the device, and not
from random numbers. Run-time numbers are part of what is remembered, by their bits.

The first time it is computed beside the trace, whose program may compute the same again. So only what takes little is
taken for a constant, and of one trace only a few: a loop that works on constants alone and reads in each round would
else begin from the start in each. And where a loop comes round that nothing else cuts, as one of forward passes, its
reads cut it.
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

LITTLE = 1024  # elements of a constant, which is kept on the host and on the device: what code decides by is short
RECORDS = 64  # that a constant may take to compute: some 0.3 s of compiling, once
ELEMENTS = 1 << 24  # of all results on the way: milliseconds
REACH = 1024  # records of the trace that are looked through, so that a read costs the same in a long trace
WAYS = 8  # in which constants of one trace are computed before a read cuts it


@dataclass(frozen=True, slots=True)
class Constant:
    """How a value is computed by itself: as the slot `slot` of a part of the trace. The `part` is the same for all
    traces that compute it alike. What it takes as inputs has to be constant, too."""

    part: Extracted
    slot: int

    @property
    def way(self) -> tuple[State, int]:
        """What it has in common with all that are computed alike."""
        return self.part.state, self.slot


class ConstantReads(Protocol):
    """What is known of constants."""

    def answer(self, key: Any, trace: Any, slot: int) -> DeviceBuffer | None:
        """The constant that `slot` of a trace is, computed when it is asked for first; `key` says all that decides it.
        None for one that cannot be computed: whoever reads it cuts, and is told. Raises what failed on the device
        before."""
        ...


def constant(state: State, slot: int) -> Constant | None:
    """How the value of `slot` in the trace at `state` is computed by itself, if constants may decide it: found once for
    a state. Whether its inputs are constant is another question."""
    if slot not in state.constants:
        state.constants = {**state.constants, slot: _find(state, slot)}
    return state.constants[slot]


def cuts(found: Constant, asked: dict[Any, int], depth: int) -> bool:
    """Whether a read is one like any other, though constants may decide it. `asked` says for each way to compute one
    how long the trace was when it was first asked for; now it is `depth` records long."""
    return depth - asked.setdefault(found.way, depth) > LOOP or len(asked) > WAYS


def key_of(found: Constant, buffers: Sequence[DeviceBuffer], numbers: Sequence[Any]) -> Any:
    """All that decides a constant, given those inputs and numbers."""
    return found.way, tuple(buffers), tuple([_bits(number) for number in numbers])


def _bits(number: Any) -> Any:
    """A number by its type and bits: NaN equals itself, and -0.0 is not 0.0 (R2)."""
    if isinstance(number, float):
        return type(number), struct.pack("<d", number)
    if isinstance(number, complex):
        return type(number), struct.pack("<dd", number.real, number.imag)
    return type(number), number


def _find(state: State, slot: int) -> Constant | None:
    """Looks back from the end of the trace, as far as what the value depends on goes."""
    if state.checks:  # what they find is told by the next read, which has to wait for it
        return None
    needed, chosen, known, size = {slot}, list[Record](), Slots(()), 0
    at = state
    for _ in range(REACH):
        record, parent = at.record, at.parent
        if record is None or parent is None:
            return None
        made = set(record.out_slots).union(*record.written.values())
        if not needed.isdisjoint(made):
            size += sum(prod(layout.shape) for layout in record.outs if layout is not None)
            if record.rng is not None or len(chosen) == RECORDS:
                return None
            chosen.append(record)
            needed -= made
            needed.update(o.slot for argument in record.arguments.values() for o in operands(argument))
        number = parent.inputs
        for admitted, layout, empty in record.admitted:
            if admitted in needed:
                needed.discard(admitted)
                size += prod(layout.shape)
                known.admit(admitted, layout, None if empty else number)
            number += not empty
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
