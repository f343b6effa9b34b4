"""The op and source line of each result of a program: determined at a miss, so that a hit costs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lazytpu.runtime.buffers.buffer import Origin
from lazytpu.trace.trie import Record


def origins(records: Iterable[Record], live: Sequence[int], program: str) -> tuple[Origin, ...]:
    """Return the origin of each of the slots `live` of a trace, in order. Unwritten memory has no line."""
    results, by_slot = set(live), dict[int, Origin]()
    for record in records:
        computed = [*record.out_slots, *(slot for slots in record.written.values() for slot in slots)]
        alive = results.intersection(computed)
        if alive:
            by_slot.update(dict.fromkeys(alive, Origin(str(record.op), record.line, program)))
    unwritten = Origin("empty", None, program)
    return tuple(by_slot.get(slot, unwritten) for slot in live)
