"""A trace with collectives in pieces: each collective is a program of its own, and so is what lies between two of them.

On the wire only its members and their order identify a collective, so its program must be the same on all of them, and
what surrounds it here may differ from what does there (R8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lazytpu.trace.extract import Extracted, Slots, extract
from lazytpu.trace.trie import CutPlan, Operand, Record
from lazytpu.trace.value import Layout


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that is about to be launched: its `group` and the processes in it, what it does with what
    (`signature`, equal on all members), and the user's line."""

    group: str
    members: tuple[int, ...]
    signature: str
    line: str


class Turn(Protocol):
    """One collective that is about to be launched."""

    def wait(self) -> None:
        """Wait until the others will launch the same. Raises an error when they will not."""
        ...

    def launched(self, status: Any) -> None:
        """It was launched; the array `status` is there when it is done."""
        ...

    def is_awaited(self) -> bool:
        """Whether the script has waited for it: then the others come to it whatever the script does next."""
        ...


class Agreement(Protocol):
    """How the processes make sure that they are about to launch the same collectives."""

    def post(self, calls: Sequence[Call]) -> Sequence[Turn]:
        """Tell the others what this process launches next, without waiting."""
        ...

    def is_awaited(self, groups: Iterable[str]) -> bool:
        """Whether the script has waited for all collectives of these groups."""
        ...

    def rehearsed(self, groups: Sequence[str]) -> None:
        """The collectives recorded last, of these groups, will never be launched."""
        ...

    def lost(self, groups: Mapping[str, Sequence[int]], error: BaseException) -> None:
        """A trace with collectives of these groups, given with their members, has failed: those that were not launched
        never will be."""
        ...


class Alone(Agreement):
    """There are no other processes."""

    def post(self, calls: Sequence[Call]) -> Sequence[Turn]:
        raise AssertionError(f"a collective outside of a process group: {calls[0]}")

    def is_awaited(self, groups: Iterable[str]) -> bool:
        return True

    def rehearsed(self, groups: Sequence[str]) -> None:
        """There is nobody who counts them."""

    def lost(self, groups: Mapping[str, Sequence[int]], error: BaseException) -> None:
        """There is nobody to tell."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a trace that runs as one program. `live` are its slots that are needed later, of these `layouts`, and
    `dead` its inputs that nothing needs after it. In the whole trace, `made` are the slots of `live`, and `done_with`
    results of pieces that nothing needs after this one: what the trace takes is held until its end. `given` has pairs
    of indices: of a live slot of the trace, and where that is in `live`. `call` is set if it is a collective, which
    runs whether its result is needed or not. `idle` says that there is nothing to run."""

    part: Extracted
    live: tuple[int, ...]
    layouts: tuple[Layout, ...]
    dead: tuple[int, ...]
    made: tuple[int, ...]
    done_with: tuple[int, ...]
    given: tuple[tuple[int, int], ...]
    call: Call | None
    idle: bool


def pieces_of(plan: CutPlan, records: Sequence[Record], live: Sequence[int], dead: Sequence[int]) -> list[Piece]:
    """The pieces of a trace when the slots `live` are its results and its inputs `dead` may be overwritten."""
    known = Slots(records)
    chosen: list[list[int]] = [[]]
    for i, record in enumerate(records):
        if record.collective:
            chosen.extend(([i], []))
        else:
            chosen[-1].append(i)
    indices = [part for part in chosen if part]
    parts = [extract(records, part, known) for part in indices]
    last = {slot: i for i, part in enumerate(parts) for slot in part.origins}
    kept = {*live, *(slot for i, slot in enumerate(plan.inputs) if i not in dead)}
    places = {slot: i for i, slot in enumerate(live)}
    pieces: list[Piece] = []
    results: set[int] = set()
    for i, (part, within) in enumerate(zip(parts, indices, strict=True)):
        ending = {slot for slot in part.origins if last[slot] == i and slot not in kept}
        inside = set(within)
        computed = [new for new, old in enumerate(part.origins) if known.makers.get(old) in inside]
        first = records[within[0]]
        call = _call(first, known) if first.collective else None
        needed = tuple([new for new in computed if call is not None or part.origins[new] not in ending])
        made = tuple([part.origins[new] for new in needed])
        results.update(made)
        pieces.append(
            Piece(
                part,
                needed,
                tuple([known.layouts[part.origins[new]] for new in needed]),
                tuple([k for k, slot in enumerate(part.inputs) if slot in ending]),
                made,
                tuple(ending & results),
                tuple([(places[slot], i) for i, slot in enumerate(made) if slot in places]),
                call,
                not needed and not any(records[k].checks for k in within),
            )
        )
    return pieces


def calls_of(pieces: Sequence[Piece]) -> list[Call]:
    """The collectives among the pieces of a trace."""
    return [piece.call for piece in pieces if piece.call is not None]


def groups_of(records: Sequence[Record]) -> dict[str, Sequence[int]]:
    """The groups of a trace's collectives, with their members."""
    calls: list[Any] = [record.arguments for record in records if record.collective]
    return {call["group"]: call["members"] for call in calls}


def _call(record: Record, known: Slots) -> Call:
    """What a record of a collective says: `all_reduce(add) float32[4, 2]`."""
    arguments = dict(record.arguments)
    operand, group, members = arguments.pop("self"), arguments.pop("group"), arguments.pop("members")
    assert isinstance(operand, Operand)
    assert operand.slot not in known.empty, "empty memory would be a constant of this rank's program"
    layout = known.layouts[operand.slot]
    shape, dtype = (layout.shape, layout.dtype) if operand.view is None else (operand.view[0], operand.view[3])
    how = ", ".join(str(value) if isinstance(value, str) else f"{name} {value}" for name, value in arguments.items())
    name = str(record.op).partition(".")[2].partition(".")[0]
    what = f"{name}({how})" if how else name
    signature = f"{what} {str(dtype).removeprefix('torch.')}{list(shape)}"
    return Call(group, tuple(members), signature, str(record.line))
