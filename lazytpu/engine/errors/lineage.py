"""Which checks of values a result depends on, and which of them failed: a read tells of what concerns its value alone.

Of a program this is known from its trace: `Lineage` sorts its results into groups that depend on the same checks and
inputs. Of a run there is one `Outcome` a group, which its buffers hold; when the run is done it says what failed, in
the run itself or in those that made the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from lazytpu.aten.errors import Check
from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.trie import Record
from lazytpu.trace.value import again

ALL = -1  # in place of a check's number: what all results of a run depend on, that it runs at all
FINE = 8  # groups that a run has an Outcome for at most; with more, those that differ in inputs alone become one
SMALL = 64  # records; in a larger trace without checks every result may depend on every input


class Failure:
    """What went wrong in the run of that number: told once, and then let go, since a raised error holds the frames that
    it passed through, and they the user's tensors (R4)."""

    __slots__ = ("error", "run")

    def __init__(self, error: BaseException, run: int):
        self.error: BaseException | None = error
        self.run = run


class Outcome:
    """How a run ended, for the results of one of its groups: `failures` is empty until it is known, and if all went
    well."""

    __slots__ = ("failures", "group")

    def __init__(self, group: Group):
        self.group = group
        self.failures: tuple[Failure, ...] = ()


outcomes_of: Callable[[Iterable[Any]], Iterable[Outcome | None]] = lambda buffers: map(_OUTCOME, buffers)  # noqa: E731
_OUTCOME = attrgetter("outcome")


@dataclass(frozen=True, slots=True)
class Group:
    """Results that depend on the same `checks` of the program and `inputs` of the trace, by number."""

    checks: tuple[int, ...]
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lineage:
    """The groups of a program, and that of each of its live slots. `guards` are checks by records without results, as
    those of a factorization's info: (the check, the inputs that it says something about)."""

    groups: tuple[Group, ...]
    of: tuple[int, ...]
    guards: tuple[tuple[int, tuple[int, ...]], ...]


def lineage(records: Sequence[Record], known: Slots, live: Sequence[int], checks: Sequence[Check]) -> Lineage:
    """The Lineage of a program that computes the slots `live`, and makes `checks`, of a trace."""
    if not checks and len(records) > SMALL:
        return Lineage((Group((), tuple(range(len(known.inputs)))),), (0,) * len(live), ())
    own = [0] * len(records)  # bits of the checks of each record
    for number, check in enumerate(checks):
        own[check.record] |= 1 << number
    guards: list[tuple[int, tuple[int, ...]]] = []
    for index, record in enumerate(records):
        if own[index] and not record.out_slots and not record.written:
            read = _read(record)
            for slot in read:  # what was made with the info fails with it
                if slot in known.makers:
                    own[known.makers[slot]] |= own[index]
            given = tuple([known.inputs[slot] for slot in read if slot in known.inputs])
            guards.extend((number, given) for number in _bits(own[index]) if given)
    depends = {slot: (0, 1 << number) for slot, number in known.inputs.items()}
    for index, record in enumerate(records):
        made, inputs = own[index], 0
        for slot in _read(record):
            before = depends.get(slot, (0, 0))
            made |= before[0]
            inputs |= before[1]
        for slot in (*record.out_slots, *(slot for slots in record.written.values() for slot in slots)):
            depends[slot] = made, inputs
    kinds = [depends.get(slot, (0, 0)) for slot in live]
    if len(set(kinds)) > FINE:
        merged = dict[int, int]()
        for made, inputs in kinds:
            merged[made] = merged.get(made, 0) | inputs
        kinds = [(made, merged[made]) for made, _ in kinds]
    numbers = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
    groups = tuple([Group(_bits(made), _bits(inputs)) for made, inputs in numbers])
    return Lineage(groups, tuple([numbers[kind] for kind in kinds]), tuple(guards))


def _read(record: Record) -> list[int]:
    return [operand.slot for argument in record.arguments.values() for operand in operands(argument)]


def _bits(mask: int) -> tuple[int, ...]:
    return tuple([i for i in range(mask.bit_length()) if mask >> i & 1])


def note_guarded(
    failed: dict[int, Failure], parents: Sequence[Outcome | None], guards: Sequence[tuple[int, tuple[int, ...]]]
) -> None:
    """Tell the outcomes of a run's inputs which of its guards `failed`, by number."""
    for number, inputs in guards:
        if number in failed:
            for parent in {parents[i] for i in inputs} - {None}:
                assert parent is not None
                parent.failures = _merged(parent.failures, (failed[number],))


def note(failed: dict[int, Failure], outcomes: Sequence[Outcome], parents: Sequence[Outcome | None]) -> None:
    """Tell the outcomes of a run which of its checks `failed`, by number, and what did of its inputs, of which the
    `parents` know. No parents: none of them can have failed."""
    for outcome in outcomes:
        found = [failed[number] for number in (ALL, *outcome.group.checks) if number in failed]
        if parents:
            found.extend(f for i in outcome.group.inputs if (p := parents[i]) is not None for f in p.failures)
        outcome.failures = _merged(outcome.failures, found)


def _merged(before: Sequence[Failure], found: Iterable[Failure]) -> tuple[Failure, ...]:
    """All of them once, in the order of their runs, without those that were told."""
    alive = [failure for failure in dict.fromkeys((*before, *found)) if failure.error is not None]
    return tuple(sorted(alive, key=lambda failure: failure.run))


def told(failures: Iterable[Failure]) -> BaseException | None:
    """The error of the first of some failures that nobody was told of, with the others as notes; None if there is none.
    They are told now."""
    found: list[BaseException] = []
    for failure in failures:
        if failure.error is not None:
            found.append(again(failure.error))
            failure.error = None
    if not found:
        return None
    for other in found[1:4]:
        found[0].add_note(f"Before this was told, more failed: {type(other).__name__}: {other}")
    return found[0]
