"""Which checks of values a result depends on, and which of them failed: a read raises only what concerns its value.

The trace of a program says this: `Lineage` sorts its results into groups that depend on the same checks and inputs. A
run has one `RunOutcome` per group, which its buffers hold. When the run is done, the outcome says what failed, in the
run itself or in those that made its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from lazytpu.aten.errors import Check
from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.trie import Record
from lazytpu.trace.value import again

ALL = -1  # in place of a check's number: that the run succeeds at all, which all of its results depend on
FINE = 8  # most groups with a RunOutcome each; if there are more, those that differ in inputs alone become one
ASSERTIONS = frozenset((torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg))
"Ops that say what has to hold for all that follows."
SMALL = 64  # records; in a larger trace without checks every result may depend on every input


class DeviceError:
    """What went wrong in the run of that number. It is raised once and then dropped, since a raised error holds the
    frames that it passed through, and they hold the user's tensors (R4)."""

    __slots__ = ("error", "run")

    def __init__(self, error: BaseException, run: int):
        self.error: BaseException | None = error
        self.run = run

    def tell(self) -> None:
        """It is about to be raised."""
        self.error = None


class RunOutcome:
    """How a run ended, for the results of one of its groups: `errors` is empty until that is known, and if all went
    well."""

    __slots__ = ("errors", "group")

    def __init__(self, group: ResultGroup):
        self.group = group
        self.errors: tuple[DeviceError, ...] = ()


outcomes_of: Callable[[Iterable[Any]], Iterable[RunOutcome | None]] = lambda buffers: map(_OUTCOME, buffers)  # noqa: E731
_OUTCOME = attrgetter("outcome")


@dataclass(frozen=True, slots=True)
class ResultGroup:
    """Results that depend on the same `checks` of the program and the same `inputs` of the trace, by number."""

    checks: tuple[int, ...]
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lineage:
    """The groups of a program, and the group of each of its live slots (`of`). `guards` are checks by records without
    results, as of a factorization's info: (the check, the inputs that it speaks of)."""

    groups: tuple[ResultGroup, ...]
    of: tuple[int, ...]
    guards: tuple[tuple[int, tuple[int, ...]], ...]


def lineage(records: Sequence[Record], known: Slots, live: Sequence[int], checks: Sequence[Check]) -> Lineage:
    """The Lineage of a program of a trace that computes the slots `live` and makes `checks`."""
    if not checks and len(records) > SMALL:
        return Lineage((ResultGroup((), tuple(range(len(known.inputs)))),), (0,) * len(live), ())
    own = [0] * len(records)  # bits of the checks of each record
    for number, check in enumerate(checks):
        own[check.record] |= 1 << number
    guards: list[tuple[int, tuple[int, ...]]] = []
    for index, record in enumerate(records):
        if own[index] and not record.out_slots and not record.written:
            read = _read(record)
            for slot in read:  # what the same record made beside the info fails with it
                if slot in known.makers:
                    own[known.makers[slot]] |= own[index]
            guarded = tuple([known.inputs[slot] for slot in read if slot in known.inputs])
            guards.extend((number, guarded) for number in _bits(own[index]) if guarded)
    depends = {slot: (0, 1 << number) for slot, number in known.inputs.items()}
    asserted = 0
    for index, record in enumerate(records):
        if record.op in ASSERTIONS:
            asserted |= own[index]
        checked, inputs = own[index] | asserted, 0
        for slot in _read(record):
            before = depends.get(slot, (0, 0))
            checked |= before[0]
            inputs |= before[1]
        for slot in (*record.out_slots, *(slot for slots in record.written.values() for slot in slots)):
            depends[slot] = checked, inputs
    kinds = [depends.get(slot, (0, 0)) for slot in live]
    if len(set(kinds)) > FINE:
        merged = dict[int, int]()
        for checked, inputs in kinds:
            merged[checked] = merged.get(checked, 0) | inputs
        kinds = [(checked, merged[checked]) for checked, _ in kinds]
    numbers = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
    groups = tuple([ResultGroup(_bits(checked), _bits(inputs)) for checked, inputs in numbers])
    return Lineage(groups, tuple([numbers[kind] for kind in kinds]), tuple(guards))


def _read(record: Record) -> list[int]:
    return [operand.slot for argument in record.arguments.values() for operand in operands(argument)]


def _bits(mask: int) -> tuple[int, ...]:
    return tuple([i for i in range(mask.bit_length()) if mask >> i & 1])


def note_guarded(
    failed: dict[int, DeviceError], parents: Sequence[RunOutcome | None], guards: Sequence[tuple[int, tuple[int, ...]]]
) -> None:
    """Add the guards of a run that `failed`, by number, to the outcomes of its inputs."""
    for number, inputs in guards:
        if number in failed:
            for parent in {parents[i] for i in inputs} - {None}:
                assert parent is not None
                parent.errors = _merged(parent.errors, (failed[number],))


def note(failed: dict[int, DeviceError], outcomes: Sequence[RunOutcome], parents: Sequence[RunOutcome | None]) -> None:
    """Add the checks of a run that `failed`, by number, to its outcomes, with the errors of its inputs, which their
    outcomes (`parents`) know. No parents: none of the inputs can have failed."""
    for outcome in outcomes:
        errors = [failed[number] for number in (ALL, *outcome.group.checks) if number in failed]
        if parents:
            errors.extend(e for i in outcome.group.inputs if (p := parents[i]) is not None for e in p.errors)
        outcome.errors = _merged(outcome.errors, errors)


def _merged(before: Sequence[DeviceError], more: Iterable[DeviceError]) -> tuple[DeviceError, ...]:
    """All of them once, in the order of their runs, without those that were raised."""
    pending = [error for error in dict.fromkeys((*before, *more)) if error.error is not None]
    return tuple(sorted(pending, key=lambda error: error.run))


def to_raise(errors: Iterable[DeviceError]) -> BaseException | None:
    """The first of some errors that was not raised yet, with the others as notes; None if there is none. From now on
    all of them count as raised."""
    pending: list[BaseException] = []
    for each in errors:
        if each.error is not None:
            pending.append(again(each.error))
            each.tell()
    if not pending:
        return None
    first, *others = pending
    for other in others[:3]:
        first.add_note(f"Before this was told, more failed: {type(other).__name__}: {other}")
    return first
