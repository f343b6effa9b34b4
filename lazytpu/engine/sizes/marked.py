"""Size expressions from input dimensions that the user marked as varying.

No other size was observed. Sizes of results are derived. Integers that Python computed from a size, such as the limits
of a view, are guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lazytpu.engine.sizes.derived import fit_guessed
from lazytpu.engine.sizes.fitting import NAMES, Varying
from lazytpu.engine.sizes.guesses import Guesses
from lazytpu.engine.sizes.skeletons import Integers, trace_apart
from lazytpu.ir.forms import Form, form, symbol
from lazytpu.ir.symbolic import MIN_SYMBOL
from lazytpu.ports import Inference, Ranges
from lazytpu.runtime.buffers.padded import PaddedBuffer
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import Record

Limits = tuple[int, "int | None"]
"""The least and the greatest size, None for no limit."""


@dataclass(frozen=True)
class Marked:
    """The records of a trace with marked inputs. `ranges` maps slots to marked dimensions and their limits."""

    records: list[Record]
    ranges: Mapping[int, Ranges]

    @classmethod
    def of(cls, buffers: Sequence[Any], records: list[Record]) -> Marked | None:
        """Return the marked dimensions of a trace's inputs, which are in `buffers`; None if none is marked."""
        marked = {number: b.ranges for number, b in enumerate(buffers) if isinstance(b, PaddedBuffer) and b.ranges}
        if not marked:
            return None
        slots = Slots(records)
        ranges: dict[int, Ranges] = {}
        for slot, number in slots.inputs.items():
            if number in marked:  # buffers have their dimensions in memory order
                order = slots.layouts[slot].memory_order
                ranges[slot] = {order[dim]: limit for dim, limit in marked[number].items()}
        return cls(records, ranges)

    def shown(self, inference: Inference) -> tuple[Varying, dict[int, Limits]] | None:
        """Return the size expressions and the limits of the symbols by position; None if nothing varies.

        Equal marked sizes are one symbol, so they stay equal.
        """
        trace_apart(self.records, into := Integers([], []))
        symbols, told, limits = dict[int, int](), dict[int, Form](), dict[int, Limits]()
        for position, slot, dim in into.inputs:
            size, limit = into.values[position], self.ranges.get(slot, {}).get(dim)
            if limit is None or size < MIN_SYMBOL:  # 0 and 1 belong to another structure
                told[position] = form(size)
                continue
            first = symbols.setdefault(size, position)
            if len(symbols) > len(NAMES):
                return None
            told[position] = symbol(NAMES[[*symbols].index(size)])
            low, high = limits.get(first, (0, None))
            limits[first] = max(low, limit[0]), min((n for n in (high, limit[1]) if n is not None), default=None)
        if not symbols:
            return None
        names: dict[str, int] = dict(zip(NAMES, symbols.values(), strict=False))
        varying = fit_guessed(Guesses(into, names, told), self.records, inference)
        return None if varying is None else (varying, limits)
