"""A program before its compilation, and its stages as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.programs.binding import Binding
from lazytpu.engine.recompiles.history import Making
from lazytpu.engine.trace_cache import lookup
from lazytpu.inspection import dumps
from lazytpu.runtime.compiling.elsewhere import Ticket
from lazytpu.trace.trie import Record

if TYPE_CHECKING:
    from lazytpu.engine.compiling.translate import Translated


@dataclass(frozen=True, slots=True)
class Prepared:
    """Program `number` of the process before compilation. It is `ready` if the index or an equal trace had
    it; otherwise `translated.module` is to be compiled, on any thread.

    - `content`: the digest of the trace in the index, None if it must not be stored there.
    - `making`: the recompile entry, which records the outcome.
    - `load`: how busy the machine was at the translation (`costs.Busy`).
    - `parts_only`: compile the parts, but not the whole.
    - `handed`: receives the ticket if the helper process compiles the program; None if it must not.
    - `behind`: whether no step waits for it.
    """

    number: int
    name: str
    records: Sequence[Record]
    content: str | None
    making: Making
    translated: Translated | None = None
    ready: Compiled | None = None
    parts_only: bool = False
    load: float = 1.0
    handed: Callable[[Ticket], None] | None = None
    behind: bool = False

    @property
    def binding(self) -> Binding:
        """The arguments that the program takes from its trace, and its results."""
        stage = self.translated or self.ready
        assert stage is not None
        return stage.binding


def dump(folder: Path, prepared: Prepared, translated: Translated, origin: str) -> None:
    """Write the stages of a program as files (LAZYTPU_DUMP), with its reason and origin."""
    number, name, reason = prepared.number, prepared.name, prepared.making.entry
    texts = {"lazytpu.mlir": translated.text, "stablehlo.mlir": translated.stablehlo, "about.txt": f"{origin}\n"}
    if translated.imported is not None:
        texts["imported.mlir"] = translated.imported
    if prepared.content is not None:
        records = len(prepared.records)
        about = lookup.dumped(prepared.content, translated.binding, name, records, translated.stablehlo)
        texts["json"] = json.dumps(about, indent=1)
    if reason.text:
        texts["why.txt"] = f"{reason.reason()}\n"
    for suffix, text in texts.items():
        dumps.write(folder, number, name, suffix, text)
