"""A trace at other sizes than its own, as far as its compiled graphs know them (`lazytpu.dynamo.elsewhere`)."""

from __future__ import annotations

from collections.abc import Iterator

from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.trie import Record, State


def elsewhere(state: State) -> Iterator[list[Record]]:
    """The records of a trace that ends at `state`, at other sizes: none if it has no compiled graph of which they are
    known, or another record has to do with what varies."""
    edges: list[State] = []
    step: State | None = state
    while step is not None:
        edges.append(step)
        step = step.parent
    edges.reverse()
    if not any(edge.elsewhere for edge in edges):
        return
    here = Slots(state.records()).layouts
    for number in range(min([len(edge.elsewhere) for edge in edges if edge.elsewhere], default=0)):
        records = [r for edge in edges for r in (edge.elsewhere[number] if edge.elsewhere else edge.recorded)]
        there = Slots(records).layouts
        varied = {slot for slot, layout in here.items() if there[slot].key != layout.key}
        fixed = (record for edge in edges if not edge.elsewhere for record in edge.recorded)
        if varied.isdisjoint(slot for record in fixed for slot in _slots(record)):
            yield records


def _slots(record: Record) -> Iterator[int]:
    """What a record reads or makes."""
    for value in record.arguments.values():
        yield from (operand.slot for operand in operands(value))
    yield from record.out_slots
    for slots in record.written.values():
        yield from slots
