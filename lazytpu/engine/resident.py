"""Programs that take parameters and optimizer states flat: what goes into a run, and the values that come out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazytpu.engine.compiling.compiled import Compiled
from lazytpu.engine.errors.lineage import Outcome
from lazytpu.runtime.buffer import Buffer
from lazytpu.runtime.laid_out import result
from lazytpu.runtime.resident import Pack, Part, pack_of
from lazytpu.trace.value import Value


def gather(compiled: Compiled, buffers: Sequence[Any]) -> list[Pack]:
    """The flat arguments of a run: as a run before left them, or made of `buffers`, the inputs of the trace."""
    return [pack_of([buffers[i] for i in each.inputs], each.form) for each in compiled.resident]


def fill(
    compiled: Compiled, held: Sequence[tuple[int, Value]], results: Sequence[Any], outcomes: Sequence[Outcome]
) -> None:
    """Give the values `held` of a trace, by slot, their places in the results of its program."""
    values, wanted = dict(held), Results(compiled, results, outcomes)
    for slot, value in values.items():
        value.buffer = wanted.buffer(slot)


class Results:
    """The results of one run as buffers, by slot."""

    def __init__(self, compiled: Compiled, results: Sequence[Any], outcomes: Sequence[Outcome] = ()):
        self.compiled = compiled
        self.outcomes = outcomes
        self.results = results
        self.packs = [Pack(array, each.form) for array, each in zip(results, compiled.resident, strict=False)]

    def buffer(self, slot: int) -> Buffer:
        """A new buffer of a live slot: ask once for each."""
        where = self.compiled.places[slot]
        outcome = self.outcomes[where.group] if self.outcomes else None
        if where.pack is None:
            layouts = self.compiled.program.layouts
            return result(layouts, where.index, self.results[where.index], where.nbytes, where.origin, outcome)
        return Part(self.packs[where.pack], where.index, where.nbytes, where.origin, outcome)
