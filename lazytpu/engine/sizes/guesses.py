"""Size expressions guessed for op arguments when only one trace was observed and its varying sizes are known.

An integer equal to a varying size, and to no constant size, is taken for that varying size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from lazytpu.engine.sizes.derived import spread
from lazytpu.engine.sizes.fitting import Varying
from lazytpu.engine.sizes.skeletons import BEGIN, SIZE
from lazytpu.ir.forms import Form, form
from lazytpu.ports import Inference
from lazytpu.trace.trie import Record

CERTAIN = 5
"""The least integer that is taken for a size; smaller ones may be numbers of dimensions."""


class Guesses:
    """Guesses the size expressions of one trace's integers. `told` has the known ones by position; `fixed` are constant
    sizes."""

    def __init__(
        self,
        integers: np.ndarray,
        kinds: np.ndarray,
        symbols: Mapping[str, int],
        told: Mapping[int, Form],
        fixed: Collection[int],
    ) -> None:
        self._integers, self._kinds, self._told, self._fixed = integers, kinds, told, fixed
        self._symbols = symbols
        self._known: dict[int, Form] = {}
        for position in sorted(told, key=lambda at: len(str(told[at]))):
            self._learn(position, told[position])

    def varying(self, records: list[Record], inference: Inference) -> Varying | None:
        """Return the size expressions of the trace with these records; None if a symbol is an expression of others."""
        return spread(self._symbols, self._integers, records, inference, self._given, self._learn)

    def _learn(self, position: int, size: Form) -> None:
        """Use `size` as the expression of integers equal to the one at `position`."""
        if size.number is None:
            self._known.setdefault(int(self._integers[position]), size)

    def _given(self, position: int) -> Form:
        """Return the known or guessed expression of an op argument's integer."""
        expression = self._told.get(position)
        return (
            self._guessed(int(self._integers[position]), int(self._kinds[position]))
            if expression is None
            else expression
        )

    def _guessed(self, number: int, kind: int) -> Form:
        """Return `number` as a varying size, a size plus or minus one, or a multiple of one; else as a constant."""
        size_of = self._known
        if kind == BEGIN and number + 1 in size_of and number + 1 not in self._fixed:
            return size_of[number + 1] - 1
        if number not in self._fixed and (kind == SIZE or number >= CERTAIN):
            if number in size_of:
                return size_of[number]
            for less in (1, -1):
                if min(number, number - less) >= CERTAIN and number - less in size_of:
                    return size_of[number - less] + less
            for size in size_of if kind != BEGIN else ():
                if size >= CERTAIN and number % size == 0:
                    return size_of[size] * (number // size)
        return form(number)
