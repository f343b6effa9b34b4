"""The programs compiled or loaded so far, as Python objects (`lazytpu.graphs()`)."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lazytpu.inspection.textual import arguments

if TYPE_CHECKING:
    from lazytpu.inspection.about import About
    from lazytpu.passes.pipeline import PassRecord

RECORD_BYTES = 1_000  # a record with its line, measured on the training step of a GPT
KEPT_BYTES = 64 << 20
"Maximum bytes of compressed text that the process keeps: about 500 training steps of 3,000 ops."


@dataclass(frozen=True, slots=True)
class Texts:
    """A program in the `lazytpu` dialect after the passes, its StableHLO, and a record of each pass."""

    text: str
    stablehlo: str
    passes: Sequence[PassRecord]


class ProgramGraph:
    """One program: its text in the `lazytpu` dialect after the passes, its StableHLO, and a record of each pass.

    Texts are stored compressed: a training step of 3,000 ops takes 60 kB instead of 1 MB. For a program that was loaded
    from the cache, they are computed on first use.

    - `number`: its number in the process, from 0; the NNN of its dump. `name`: the user's function that most of its ops
      come from. `records`: the number of ops recorded for it.
    - `about`: the script, its models, and the versions of the libraries.
    """

    __slots__ = ("_make", "_summary", "_texts", "about", "name", "number", "records")

    def __init__(
        self,
        number: int,
        name: str,
        records: int,
        texts: Texts | Callable[[], Texts],
        about: About | None = None,
    ):
        self.number, self.name, self.records, self.about = number, name, records, about
        # the numbers of arguments and of aliased arguments, and the passes
        self._summary: tuple[int, int, tuple[PassRecord, ...]] = (0, 0, ())
        self._texts: tuple[bytes, ...] = ()  # of the dialect, and StableHLO
        self._make = texts if callable(texts) else None
        if isinstance(texts, Texts):
            self._keep(texts)

    def _keep(self, texts: Texts) -> None:
        listed = arguments(texts.text)
        self._summary = len(listed), sum(is_aliased for _, is_aliased in listed), tuple(texts.passes)
        self._texts = tuple(zlib.compress(text.encode(), 1) for text in (texts.text, texts.stablehlo))

    def _made(self) -> tuple[int, int, tuple[PassRecord, ...]]:
        if self._make is not None:
            self._keep(self._make())
            self._make = None
        return self._summary

    @property
    def arguments(self) -> int:
        """The number of the program's arguments."""
        return self._made()[0]

    @property
    def aliased(self) -> int:
        """The number of arguments that a result overwrites."""
        return self._made()[1]

    @property
    def passes(self) -> tuple[PassRecord, ...]:
        """A record of each pass; `passes[0]` is the imported module."""
        return self._made()[2]

    def text(self) -> str:
        """Return the program in the `lazytpu` dialect, input for `lazytpu-opt`. Raises LookupError once it is
        dropped."""
        return self._read(0)

    def stablehlo(self) -> str:
        """Return the program as XLA gets it. Raises LookupError once it is dropped."""
        return self._read(1)

    def save_html(self, path: str | os.PathLike[str], generation: str = "v6e", *, by_model: bool = False) -> None:
        """Write the program as one HTML file for a browser: source lines by time, timeline, memory, graph, ops
        (docs/inspecting.md).

        It shows the program after the passes for a TPU of this generation, with the times of `lazytpu.tpu_report`: by
        the TPU's compiler where it is installed, which takes minutes for a large step, once; otherwise, or `by_model`,
        by a model of the chip.

        Raises LookupError once the text is dropped, and ValueError for an unknown generation.
        """
        from lazytpu.inspection.html.page import UNKNOWN, page  # imported here, because it imports xDSL
        from lazytpu.inspection.step.costs import costed
        from lazytpu.passes.generations import GENERATIONS

        if generation not in GENERATIONS:
            raise ValueError(f"there is no generation {generation!r}; generations are {', '.join(GENERATIONS)}")
        step = costed(self.text(), self.name, generation, by_model=by_model)
        Path(path).write_text(page(step, about=self.about or UNKNOWN), encoding="utf-8")

    def _read(self, index: int) -> str:
        self._made()
        if not self._texts:
            raise LookupError(
                f"the texts of program {self.number} were dropped: the newest {KEPT_BYTES >> 20} MB are kept. "
                "Set LAZYTPU_DUMP to a folder to write all of them."
            )
        return zlib.decompress(self._texts[index]).decode()

    @property
    def nbytes(self) -> int:
        """Bytes of the texts, or of the records from which they can be computed."""
        if self._make is not None:
            return self.records * RECORD_BYTES
        return sum(map(len, self._texts))

    def drop_texts(self) -> None:
        """Drop the program's texts, its passes' texts, and the means to compute them; keep the figures."""
        arguments, aliased, passes = self._summary
        self._texts, self._make = (), None
        self._summary = (arguments, aliased, tuple(replace(record, text=None) for record in passes))

    @property
    def ops(self) -> int:
        """The number of ops after the passes."""
        return self.passes[-1].ops_after if self.passes else 0

    def __repr__(self) -> str:
        if self._make is not None:
            return f"<graph {self.number} {self.name}: {self.records:,} recorded ops, compiled by an earlier process>"
        ops = f"{self.ops:,} ops" + (f" (from {self.passes[0].ops_after:,})" if self.passes else "")
        overwritten = f" ({self.aliased:,} overwritten by results)" if self.aliased else ""
        return f"<graph {self.number} {self.name}: {ops}, {self.arguments:,} arguments{overwritten}>"


class ProgramGraphs(list[ProgramGraph]):
    """Programs, oldest first. Beyond `KEPT_BYTES` of texts the oldest programs lose their texts, so that a script that
    keeps compiling does not fill the memory."""

    def append(self, graph: ProgramGraph, /) -> None:
        super().append(graph)
        kept = 0
        for program in reversed(self):
            kept += program.nbytes
            if kept > KEPT_BYTES and program is not graph:
                program.drop_texts()


GRAPHS = ProgramGraphs()
"All programs of the process, oldest first."
