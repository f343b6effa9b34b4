"""Which op of which line made each result of a program: found at the miss, so that a hit only hands it on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lazytpu.runtime.buffer import Origin
from lazytpu.trace.trie import Record


def origins(records: Iterable[Record], live: Sequence[int], program: str) -> tuple[Origin, ...]:
    """The origin of each of the slots `live` of a trace, in their order. Memory that nothing wrote has no line."""
    wanted, found = set(live), dict[int, Origin]()
    for record in records:
        made = [*record.out_slots, *(slot for slots in record.written.values() for slot in slots)]
        mine = wanted.intersection(made)
        if mine:
            found.update(dict.fromkeys(mine, Origin(str(record.op), record.line, program)))
    nothing = Origin("empty", None, program)
    return tuple(found.get(slot, nothing) for slot in live)
