"""What of a trace computes one value, out of turn: of what is not computed yet, that which the value depends on."""

from __future__ import annotations

from collections.abc import Container, Sequence

from lazytpu.trace.extract import Extracted, Slots, extract, operands
from lazytpu.trace.trie import CutPlan, Record


def part_for(plan: CutPlan, records: Sequence[Record], slot: int, there: Container[int]) -> Extracted | None:
    """The part of a trace that computes a slot, when other slots are `there`. None if that takes a collective."""
    known = Slots(records)
    needed: set[int] = set()
    pending = [slot]
    while pending:
        at = pending.pop()
        maker = None if at in there else known.makers.get(at)
        if maker is None or maker in needed:
            continue
        record = records[maker]
        if record.collective:
            return None
        needed.add(maker)
        pending.extend([each.slot for argument in record.arguments.values() for each in operands(argument)])
    chosen = tuple(sorted(needed))
    if chosen not in plan.ahead:  # the state of a part has its program
        plan.ahead[chosen] = extract(records, chosen, known)
    return plan.ahead[chosen]
