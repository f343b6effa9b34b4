"""A program before its compilation, and its stages as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lazytpu.aten.errors import ImportFailure
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.programs.binding import Binding
from lazytpu.engine.recompiles.history import Making
from lazytpu.engine.sizes.buckets import OneSize
from lazytpu.engine.trace_cache import lookup
from lazytpu.inspection import dumps
from lazytpu.options import options
from lazytpu.passes.target import Target
from lazytpu.runtime.compiling.elsewhere import Ticket
from lazytpu.runtime.xla import client
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


def for_target(target: Target, translate: Callable[..., Translated], here: Translated) -> Translated | Exception:
    """Return the translation of a program for the platform of `options.target`, by `translate(platform=...)`, or the
    error of one that this platform cannot run. `here` is the translation for the platform of this process."""
    if options.target is None or target.platform == client.platform():
        return here
    from lazytpu.lowering.errors import LoweringError  # here: their rooms load xDSL
    from lazytpu.passes.errors import PassError

    try:
        return translate(platform=target.platform)
    except (ImportFailure, LoweringError, NotImplementedError, OneSize, PassError) as error:
        return error


def dump(folder: Path, prepared: Prepared, translated: Translated | Exception, origin: str) -> None:
    """Write the stages of a program as files (LAZYTPU_DUMP), with its reason and origin; or the error for which it has
    no translation, with the stages of this process's program."""
    number, name, reason = prepared.number, prepared.name, prepared.making.entry
    stages = prepared.translated if isinstance(translated, Exception) else translated
    assert stages is not None
    texts = {"lazytpu.mlir": stages.text, "stablehlo.mlir": stages.stablehlo, "about.txt": f"{origin}\n"}
    if stages.imported is not None:
        texts["imported.mlir"] = stages.imported
    if prepared.content is not None:
        records = len(prepared.records)
        about = lookup.dumped(prepared.content, stages.binding, name, records, stages.stablehlo)
        about |= {"refused": str(translated)} if isinstance(translated, Exception) else {}
        texts["json"] = json.dumps(about, indent=1)
    if reason.text:
        texts["why.txt"] = f"{reason.reason()}\n"
    for suffix, text in texts.items():
        dumps.write(folder, number, name, suffix, text)
