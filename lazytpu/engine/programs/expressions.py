"""The expressions of a program for many sizes, and the guards that say at which sizes it serves.

They are derived by the import of the bound with symbolic sizes (`padded`). The trace index keeps them for later
processes; this module loads neither xDSL nor a rule.
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

DIGITS = 8  # of the digest of one entry of a structure, which only tells where two structures differ


@dataclass(frozen=True, slots=True)
class Expressions:
    """What the module of a program is at any size: its structure, and an expression for each of its integers.

    `decomposed` and `identities` say how it was imported (`padded.Way`). `structure` is the digest of what is the same
    at all sizes, and `entries` has digits of the digest of each entry. `numbers` are the indices of the integers'
    expressions in `forms`. `constants` are the floats, in hexadecimal, that the module of the bound has where a
    constant is 2 divided by an integer: the program keeps those whose integer is the same at all sizes. `guards` are
    what decided the path of the import: each a form, a relation to 0, and whether it holds.
    """

    decomposed: bool
    identities: bool
    bounds_checks: bool
    structure: str
    entries: str
    forms: tuple[str, ...]
    numbers: tuple[int, ...]
    constants: tuple[str, ...]
    guards: tuple[tuple[str, str, bool], ...]

    def failing(self, sizes: Mapping[str, int]) -> Guard | None:
        """A guard that does not hold at these sizes, which the program does not serve; None if all do."""
        return next((guard for guard in map(Guard.parse, self.guards) if not guard.at(sizes)), None)

    def integers(self, sizes: Mapping[str, int]) -> list[int]:
        """The integers of the module at these sizes."""
        values = [parse(text).at(sizes) for text in self.forms]
        return [values[i] for i in self.numbers]

    def encode(self) -> str:
        """Text for the trace index."""
        return b64encode(zlib.compress(json.dumps(astuple(self), separators=(",", ":")).encode())).decode()

    @classmethod
    def decode(cls, text: str) -> Expressions:
        """The expressions that `encode` wrote. Raises ValueError or TypeError for other text."""
        try:
            fields = json.loads(zlib.decompress(b64decode(text, validate=True)))
        except zlib.error as error:
            raise ValueError(f"the expressions cannot be read: {error}") from error
        *plain, guards = fields
        tuples: list[Any] = [tuple(each) if isinstance(each, list) else each for each in plain]
        tuples.append(tuple(map(tuple, guards)))
        found = cls(*tuples)
        for form in (*found.forms, *(text for text, _, _ in found.guards)):
            parse(form)
        if not all(type(i) is int and 0 <= i < len(found.forms) for i in found.numbers):
            raise ValueError("an integer has no expression")
        return found


def digests(structure: Sequence[Any]) -> tuple[str, str]:
    """The digest of a structure, and digits of the digests of its entries."""
    each = [sha256(repr(entry).encode()).hexdigest() for entry in structure]
    return sha256("".join(each).encode()).hexdigest(), "".join(digest[:DIGITS] for digest in each)
