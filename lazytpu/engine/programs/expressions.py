"""The size expressions of a program for many sizes, and the guards that decide which sizes it serves.

The import at the bound with symbolic sizes derives them (`padded`). The trace index stores them for later processes.
This module loads neither xDSL nor a rule.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from hashlib import sha256
from typing import Any

from lazytpu.ir.forms import parse
from lazytpu.ir.symbolic import Guard

DIGITS = 8  # digits stored per entry of a structure, to locate the difference between two structures


@dataclass(frozen=True, slots=True)
class Expressions:
    """The module of a program at any size: its structure, and an expression for each of its integers.

    - `decomposed`: whether attention is decomposed. `bounds_checks`: whether indices are checked.
    - `structure`: the digest of the part that is the same at all sizes; `entries` has digits of the digest of each
      entry.
    - `numbers`: the index in `forms` of each integer's expression.
    - `constants`: the constants 2 divided by an integer, in hexadecimal, as the import at some bound had them. The
      program keeps a constant whose integer is the same at all sizes.
    - `guards`: the conditions that decided branches of the import: each an expression, a relation to 0, and whether it
      holds.
    """

    decomposed: bool
    bounds_checks: bool
    structure: str
    entries: str
    forms: tuple[str, ...]
    numbers: tuple[int, ...]
    constants: tuple[str, ...]
    guards: tuple[tuple[str, str, bool], ...]

    def failing(self, sizes: Mapping[str, int]) -> Guard | None:
        """Return a guard that does not hold at these sizes, which the program then does not serve; None if all hold."""
        return next((guard for guard in map(Guard.parse, self.guards) if not guard.at(sizes)), None)

    def integers(self, sizes: Mapping[str, int]) -> list[int]:
        """Return the integers of the module at these sizes."""
        values = [parse(text).at(sizes) for text in self.forms]
        return [values[i] for i in self.numbers]

    def encode(self) -> str:
        """Return the expressions as text for the trace index."""
        return b64encode(zlib.compress(json.dumps(astuple(self), separators=(",", ":")).encode())).decode()

    @classmethod
    def decode(cls, text: str) -> Expressions:
        """Parse the text from `encode`. Raise ValueError or TypeError for other text."""
        try:
            fields = json.loads(zlib.decompress(b64decode(text, validate=True)))
        except zlib.error as error:
            raise ValueError(f"the expressions cannot be read: {error}") from error
        *plain, guards = fields
        tuples: list[Any] = [tuple(item) if isinstance(item, list) else item for item in plain]
        tuples.append(tuple(map(tuple, guards)))
        expressions = cls(*tuples)
        for form in (*expressions.forms, *(text for text, _, _ in expressions.guards)):
            parse(form)
        if not all(type(i) is int and 0 <= i < len(expressions.forms) for i in expressions.numbers):
            raise ValueError("an integer has no expression")
        return expressions


def digests(structure: Sequence[Any]) -> tuple[str, str]:
    """Return the digest of a structure, and digits of the digests of its entries."""
    entry_digests = [sha256(repr(entry).encode()).hexdigest() for entry in structure]
    return sha256("".join(entry_digests).encode()).hexdigest(), "".join(digest[:DIGITS] for digest in entry_digests)
