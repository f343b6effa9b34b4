"""What somebody said will vary of the inputs of a trace.

Nobody has shown how the trace looks at other sizes. Sizes of results are derived; what Python computed of a size, such
as the limits of a view, is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lazytpu.engine.sizes.fitting import NAMES, Varying
from lazytpu.engine.sizes.guesses import Guesses
from lazytpu.engine.sizes.skeletons import LEAST, Integers, admitted_at, trace_apart
from lazytpu.ir.forms import symbol
from lazytpu.ports import Inference, Ranges
from lazytpu.runtime.buffers.padded import PaddedBuffer
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import Record

Limits = tuple[int, "int | None"]
"The least and the greatest size, None for no limit."


@dataclass(frozen=True)
class Marked:
    """The records of a trace with inputs of which some dims were said to vary: by slot, with the limits of each."""

    records: list[Record]
    ranges: Mapping[int, Ranges]

    @classmethod
    def of(cls, buffers: Sequence[Any], records: list[Record]) -> Marked | None:
        """What is marked of the inputs of a trace, in these buffers; None if nothing is."""
        marked = {number: b.ranges for number, b in enumerate(buffers) if isinstance(b, PaddedBuffer) and b.ranges}
        if not marked:
            return None
        known = Slots(records)
        ranges: dict[int, Ranges] = {}
        for slot, number in known.inputs.items():
            if number in marked:  # buffers have their dims in memory order
                order = known.layouts[slot].memory_order
                ranges[slot] = {order[dim]: each for dim, each in marked[number].items()}
        return cls(records, ranges)

    def shown(self, inference: Inference) -> tuple[Varying, dict[int, Limits]] | None:
        """What varies, where equal sizes stay equal, and the limits of the symbols, by position; None if nothing
        does."""
        trace_apart(self.records, into := Integers([], []))
        integers, fixed = np.array(into.values, dtype=np.int64), set[int]()
        symbols, told, limits = dict[int, int](), dict[int, str](), dict[int, Limits]()
        for position, size, limit in self._inputs(into):
            if limit is None or size < LEAST:  # which may be another kind at other sizes
                fixed.add(size)
                continue
            first = symbols.setdefault(size, position)
            if len(symbols) > len(NAMES):
                return None
            told[position] = NAMES[[*symbols].index(size)]
            limits[first] = _narrower(limits.get(first, (0, None)), limit)
        if not symbols:
            return None
        forms = {at: symbol(name) for at, name in told.items()}
        names: dict[str, int] = dict(zip(NAMES, symbols.values(), strict=False))
        varying = Guesses(integers, np.array(into.kinds), names, forms, fixed).varying(self.records, inference)
        return None if varying is None else (varying, limits)

    def _inputs(self, into: Integers) -> Iterator[tuple[int, int, Limits | None]]:
        """The positions of sizes of inputs, the sizes, and the limits of those that vary."""
        for position, slot, dim in admitted_at(self.records):
            yield position, into.values[position], self.ranges.get(slot, {}).get(dim)


def _narrower(one: Limits, other: Limits) -> Limits:
    return max(one[0], other[0]), min((n for n in (one[1], other[1]) if n is not None), default=None)
