"""The programs made so far, as objects to look at (`lazytpu.graphs()`)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lazytpu.passes.pipeline import PassRecord

KEPT_BYTES = 64 << 20
"Compressed text that the process keeps: some 500 training steps of 3,000 ops."


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
        self._text: bytes | None = zlib.compress(text.encode(), 1)
        self._stablehlo: bytes | None = zlib.compress(stablehlo.encode(), 1)

    def text(self) -> str:
        """The program in the `lazytpu` dialect: input for `lazytpu-opt`. Raises LookupError once it was dropped."""
        return self._read(self._text)

    def stablehlo(self) -> str:
        """The program as XLA got it. Raises LookupError once it was dropped."""
        return self._read(self._stablehlo)

    def _read(self, kept: bytes | None) -> str:
        if kept is None:
            raise LookupError(
                f"the texts of program {self.number} were dropped: the newest {KEPT_BYTES >> 20} MB are kept. "
                "Set LAZYTPU_DUMP to a folder to have all of them written."
            )
        return zlib.decompress(kept).decode()

    @property
    def nbytes(self) -> int:
        """Bytes that the texts take."""
        return len(self._text or b"") + len(self._stablehlo or b"")

    def drop_texts(self) -> None:
        """Forget the texts, and those of the passes; the rest stays."""
        self._text = self._stablehlo = None
        self.passes = tuple(replace(record, text=None) for record in self.passes)

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


class Graphs(list[Graph]):
    """Graphs in the order they were made. Beyond `KEPT_BYTES` of texts the oldest lose theirs, so that a script that
    compiles for ever does not fill the memory."""

    def __init__(self) -> None:
        super().__init__()
        self._first_with_texts = 0
        self._bytes = 0

    def append(self, graph: Graph, /) -> None:
        super().append(graph)
        self._bytes += graph.nbytes
        while self._bytes > KEPT_BYTES and self._first_with_texts < len(self) - 1:
            oldest = self[self._first_with_texts]
            self._bytes -= oldest.nbytes
            oldest.drop_texts()
            self._first_with_texts += 1


GRAPHS = Graphs()
"All programs of the process, oldest first."
