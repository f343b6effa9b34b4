"""Subtraces: traces as functions, for the branches and bodies of control flow.

A record cannot contain other records. So a record that runs a subtrace refers to it by its digest, which is equal in
every process. The subtraces are kept here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout


@dataclass(frozen=True, slots=True)
class Subtrace:
    """A function of `arguments`: arrays of these layouts.

    - `inputs`: slot -> index of its argument.
    - `numbers`: the run-time numbers of the records, all of them constants.
    - `draws`: the number of random ops, whose numbers are not among `numbers`.
    - `results`: operands, or indices of arguments that are returned unchanged; `outs` are their layouts.
    """

    arguments: tuple[Layout, ...]
    records: tuple[Record, ...]
    inputs: dict[int, int]
    numbers: tuple[Any, ...]
    draws: int
    results: tuple[Operand | int, ...]
    outs: tuple[Layout, ...]

    def identity(self, records: str) -> Any:
        """Return the properties that distinguish functions, for a digest; `records` is the text of the records."""
        numbers = [(type(number).__name__, repr(number)) for number in self.numbers]
        return records, self.arguments, sorted(self.inputs.items()), numbers, self.results


SUBTRACES: dict[str, Subtrace] = {}
"Digest -> subtrace. Never evicted, because a program of this process may be compiled again at any time."
