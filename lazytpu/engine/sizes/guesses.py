"""Guesses of what ops are given where one trace alone is there, and it is known what varies in it.

A number that is a size which varies, and none that does not, is taken for this size.
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
"The least size that an integer of the trace is taken for: smaller ones may be numbers of dims."


class Guesses:
    """Forms of the integers of one trace. `told` are some of them, by position, and `fixed` sizes that do not vary."""

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
        """What varies in the trace, which has these records; None where a symbol follows from others."""
        return spread(self._symbols, self._integers, records, inference, self._given, self._learn)

    def _learn(self, position: int, size: Form) -> None:
        if size.number is None:
            self._known.setdefault(int(self._integers[position]), size)

    def _given(self, position: int) -> Form:
        told = self._told.get(position)
        return self._guessed(int(self._integers[position]), int(self._kinds[position])) if told is None else told

    def _guessed(self, number: int, kind: int) -> Form:
        """A size that varies, or one next to one, or a multiple of one."""
        known = self._known
        if kind == BEGIN and number + 1 in known and number + 1 not in self._fixed:
            return known[number + 1] - 1
        if number not in self._fixed and (kind == SIZE or number >= CERTAIN):
            if number in known:
                return known[number]
            for less in (1, -1):
                if min(number, number - less) >= CERTAIN and number - less in known:
                    return known[number - less] + less
            for size in known if kind != BEGIN else ():
                if size >= CERTAIN and number % size == 0:
                    return known[size] * (number // size)
        return form(number)
