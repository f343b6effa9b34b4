"""Size expressions guessed for op arguments when only one trace was observed and its varying sizes are known.

An integer equal to a varying size, and to no constant size, is taken for that varying size.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from lazytpu.engine.sizes.fitting import Fitting
from lazytpu.engine.sizes.skeletons import BEGIN, SIZE, Integers
from lazytpu.ir.forms import Form, form

CERTAIN = 5
"""The least integer that is taken for a size; smaller ones may be numbers of dimensions."""


class Guesses(Fitting):
    """Guesses the size expressions of one trace's integers, of which `told` has the known ones by position."""

    def __init__(
        self,
        integers: Integers,
        symbols: Mapping[str, int],
        told: Mapping[int, Form],
        sources: Mapping[str, tuple[int, int]] = MappingProxyType({}),
        parts: bool = False,
    ) -> None:
        table, self._size_of = np.array([integers.values], dtype=np.int64), dict[int, Form]()
        super().__init__(table, np.array(integers.kinds), symbols=symbols, parts=parts)
        self._told, self.sources = told, sources
        self._fixed = {int(table[0, at]) for at in told if told[at].number is not None and self.kinds[at] == SIZE}
        for position in sorted(told, key=lambda at: -len(str(told[at]))):  # the shortest is the last
            if told[position].symbols <= symbols.keys():
                self.learn(position, told[position])

    def learn(self, position: int, size: Form) -> None:
        """Use `size` as the expression of later integers equal to the one at `position`.

        Two varying sizes may be equal in this trace; an argument then has the one of the nearest result before it.
        """
        if size.number is None:
            self._size_of[int(self.table[0, position])] = size

    def is_constant(self, position: int) -> bool:
        """Return whether the integer at a position is known to be constant."""
        return position in self._told and self._told[position].number is not None

    def choose(self, position: int) -> Form:
        """Return the known or guessed expression of an op argument's integer: a varying size, a size plus or minus one,
        or a multiple of one; else a constant."""
        if position in self._told:
            return self._told[position]
        number, kind = int(self.table[0, position]), self.kinds[position]
        size_of, fixed = self._size_of, self._fixed
        if kind == BEGIN and number + 1 in size_of and number + 1 not in fixed:
            return size_of[number + 1] - 1
        if number not in fixed and (kind == SIZE or number >= CERTAIN):
            if number in size_of:
                return size_of[number]
            for less in (1, -1):
                if min(number, number - less) >= CERTAIN and number - less in size_of:
                    return size_of[number - less] + less
            for size in size_of if kind != BEGIN else ():
                if size >= CERTAIN and number % size == 0:
                    return size_of[size] * (number // size)
        return form(number)
