"""The programs made so far, as objects to look at (`lazytpu.graphs()`)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

from lazytpu.passes.pipeline import PassRecord


class Graph:
    """One program: its text in the `lazytpu` dialect after the passes, its StableHLO, and what each pass did.

    The texts are kept compressed: a training step of 3,000 ops is 1 MB of text and 60 kB here.
    """

    __slots__ = ("_stablehlo", "_text", "aliased", "arguments", "name", "number", "passes")

    def __init__(self, number: int, name: str, text: str, stablehlo: str, passes: Sequence[PassRecord]):
        self.number = number
        "Which program of the process this is, from 0; the NNN of its dump."
        self.name = name
        "The user's function that most of its ops come from."
        self.passes: tuple[PassRecord, ...] = tuple(passes)
        "What each pass did; `passes[0]` is the module as it came in."
        self.arguments, self.aliased = _count_arguments(text)
        self._text = zlib.compress(text.encode(), 1)
        self._stablehlo = zlib.compress(stablehlo.encode(), 1)

    def text(self) -> str:
        """The program in the `lazytpu` dialect: input for `lazytpu-opt`."""
        return zlib.decompress(self._text).decode()

    def stablehlo(self) -> str:
        """The program as XLA got it."""
        return zlib.decompress(self._stablehlo).decode()

    @property
    def ops(self) -> int:
        """Number of ops after the passes."""
        return self.passes[-1].ops_after if self.passes else 0

    def __repr__(self) -> str:
        ops = f"{self.ops:,} ops" + (f" (from {self.passes[0].ops_after:,})" if self.passes else "")
        overwritten = f" ({self.aliased:,} overwritten by results)" if self.aliased else ""
        return f"<graph {self.number} {self.name}: {ops}, {self.arguments:,} arguments{overwritten}>"


def _count_arguments(text: str) -> tuple[int, int]:
    """How many arguments `@main` has, and how many of them a result takes the memory of."""
    signature = next((line for line in text.splitlines() if "@main(" in line), "")
    signature = re.sub(r'"(?:[^"\\]|\\.)*"', '""', signature)
    arguments = signature.split(") -> ")[0]
    return arguments.count("%"), arguments.count("lazytpu.alias")


GRAPHS: list[Graph] = []
"All programs of the process, oldest first."
