"""Which value checks a result depends on, and which of them failed: a read raises only errors that concern its value.

The trace of a program determines this. `Lineage` sorts its results into groups that depend on the same checks and
inputs. A run has one `RunOutcome` per group, which its buffers hold. When the run is done, the outcome has the errors,
of the run itself or of the runs that computed its inputs.
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

ALL = -1  # the number for the failure of a whole run, on which all of its results depend
FINE = 8  # greatest number of groups; beyond it, groups that differ only in inputs are merged
ASSERTIONS = frozenset((torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg))
"""Ops whose checks concern everything after them."""
SMALL = 64  # records; in a larger trace without checks every result may depend on every input


class DeviceError:
    """The error of run number `run`. It is raised once and then dropped, since a raised error holds its frames, and
    they hold the user's tensors (R4)."""

    __slots__ = ("error", "run")

    def __init__(self, error: BaseException, run: int):
        self.error: BaseException | None = error
        self.run = run

    def tell(self) -> None:
        """Mark the error as reported, before it is raised."""
        self.error = None


class RunOutcome:
    """The outcome of a run for the results of one of its groups. `errors` is empty until the run is done, and if it
    succeeded."""

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
    """The groups of a program, and the group of each of its live slots (`of`).

    `guards` are checks by records without results, such as of a factorization's info: (the check, the inputs it
    concerns).
    """

    groups: tuple[ResultGroup, ...]
    of: tuple[int, ...]
    guards: tuple[tuple[int, tuple[int, ...]], ...]


def lineage(records: Sequence[Record], known: Slots, live: Sequence[int], checks: Sequence[Check]) -> Lineage:
    """Return the Lineage of a trace's program that computes the slots `live` and has the given `checks`."""
    if not checks and len(records) > SMALL:
        return Lineage((ResultGroup((), tuple(range(len(known.inputs)))),), (0,) * len(live), ())
    # Assign each check to its record.
    check_bits = [0] * len(records)  # bits of the checks of each record
    for number, check in enumerate(checks):
        check_bits[check.record] |= 1 << number
    # A check by a record without results also concerns the results and inputs that the record reads.
    guards: list[tuple[int, tuple[int, ...]]] = []
    for index, record in enumerate(records):
        if check_bits[index] and not record.out_slots and not record.written:
            read = _read(record)
            for slot in read:  # other results of the record that computed the info fail with it
                if slot in known.makers:
                    check_bits[known.makers[slot]] |= check_bits[index]
            guarded = tuple([known.inputs[slot] for slot in read if slot in known.inputs])
            guards.extend((number, guarded) for number in _bits(check_bits[index]) if guarded)
    # Propagate checks and inputs from operands to results.
    depends = {slot: (0, 1 << number) for slot, number in known.inputs.items()}
    asserted = 0
    for index, record in enumerate(records):
        if record.op in ASSERTIONS:
            asserted |= check_bits[index]
        checked, inputs = check_bits[index] | asserted, 0
        for slot in _read(record):
            previous = depends.get(slot, (0, 0))
            checked |= previous[0]
            inputs |= previous[1]
        for slot in (*record.out_slots, *(slot for slots in record.written.values() for slot in slots)):
            depends[slot] = checked, inputs
    # Group the live slots by checks and inputs.
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
    """Return the slots that a record reads."""
    return [operand.slot for argument in record.arguments.values() for operand in operands(argument)]


def _bits(mask: int) -> tuple[int, ...]:
    """Return the numbers of the set bits."""
    return tuple([i for i in range(mask.bit_length()) if mask >> i & 1])


def note_guarded(
    failed: dict[int, DeviceError], parents: Sequence[RunOutcome | None], guards: Sequence[tuple[int, tuple[int, ...]]]
) -> None:
    """Add the `failed` guards of a run to the outcomes of the inputs they concern."""
    for number, inputs in guards:
        if number in failed:
            for parent in {parents[i] for i in inputs} - {None}:
                assert parent is not None
                parent.errors = _merged(parent.errors, (failed[number],))


def note(failed: dict[int, DeviceError], outcomes: Sequence[RunOutcome], parents: Sequence[RunOutcome | None]) -> None:
    """Add the `failed` checks of a run, by number, to its outcomes, together with the errors of its inputs.

    `parents` are the outcomes of the inputs; it is empty if no input can have failed.
    """
    for outcome in outcomes:
        errors = [failed[number] for number in (ALL, *outcome.group.checks) if number in failed]
        if parents:
            errors.extend(e for i in outcome.group.inputs if (p := parents[i]) is not None for e in p.errors)
        outcome.errors = _merged(outcome.errors, errors)


def _merged(before: Sequence[DeviceError], more: Iterable[DeviceError]) -> tuple[DeviceError, ...]:
    """Return all pending errors without duplicates, in the order of their runs."""
    pending = [error for error in dict.fromkeys((*before, *more)) if error.error is not None]
    return tuple(sorted(pending, key=lambda error: error.run))


def to_raise(errors: Iterable[DeviceError]) -> BaseException | None:
    """Return the first pending error, with others as notes, or None. Mark all of them as reported."""
    pending: list[BaseException] = []
    for pending_error in errors:
        if pending_error.error is not None:
            pending.append(again(pending_error.error))
            pending_error.tell()
    if not pending:
        return None
    first, *further = pending
    for further_error in further[:3]:
        first.add_note(f"Before this was told, more failed: {type(further_error).__name__}: {further_error}")
    return first
