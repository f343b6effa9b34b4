"""A trace with collectives in pieces: each collective is a program of its own, and so is what lies between two of them.

On the wire only its members and their order identify a collective, so its program must be the same on all of them, and
what surrounds it here may differ from what does there (R8).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from lazytpu.engine.cutting.agreement import Agreement, Call, Turn
from lazytpu.engine.cutting.cut import Cut, part_of
from lazytpu.engine.cutting.strategies import Away, Strategy
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.trace.extract import Extracted, Slots, extract
from lazytpu.trace.trie import CutPlan, Operand, Record


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a trace that runs as one program. `live` are its slots that are needed later, and `dead` its inputs
    that nothing needs after it. In the whole trace, `made` are the slots of `live`, and `done_with`
    results of pieces that nothing needs after this one: what the trace takes is held until its end. `given` has pairs
    of indices: of a live slot of the trace, and where that is in `live`. `call` is set if it is a collective, which
    runs whether its result is needed or not. `idle` says that there is nothing to run."""

    part: Extracted
    live: tuple[int, ...]
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
                tuple([k for k, slot in enumerate(part.inputs) if slot in ending]),
                made,
                tuple(ending & results),
                tuple([(places[slot], i) for i, slot in enumerate(made) if slot in places]),
                call,
                not needed and not any(records[k].checks for k in within),
            )
        )
    return pieces


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


@dataclass(slots=True)
class Result:
    """A result of a piece, in place of a value: its `buffer`, once it is computed."""

    buffer: Any = None


@dataclass(slots=True)
class Pieces(Strategy):
    """Run a trace with collectives: its `pieces` one after the other, each by its own strategy, None where there is
    nothing to run. Each collective waits, in its turn, until the other processes are at the same one."""

    pieces: Sequence[tuple[Piece, Strategy | None]]
    agreement: Agreement
    hit: bool
    turns: Sequence[Turn] | None = None
    away: Away = nullcontext

    program = None
    collective = True

    @property
    def programs(self) -> Sequence[Any]:
        return [program for piece, one in self.pieces if one and not piece.idle for program in one.programs]

    def defer(self, away: Away) -> Sequence[Turn]:
        self.away, self.turns = away, self._announce()
        return self.turns

    def _announce(self) -> Sequence[Turn]:
        return self.agreement.post([piece.call for piece, _ in self.pieces if piece.call is not None])

    def run(self, cut: Cut) -> Strategy | None:
        turns = iter(self._announce() if self.turns is None else self.turns)
        buffers = cut.inputs()
        for piece, one in self.pieces:
            if one is not None:
                # A result of the whole trace gets its buffer as soon as its piece has run; deferred, it may be shared.
                results = [Result() for _ in piece.live]
                for place, i in piece.given:
                    results[i] = cut.held[place][1]
                held = list(zip(piece.live, results, strict=True))
                plan = piece.part.state.plan or CutPlan.of(piece.part.state)
                own = Cut(plan, part_of(cut.trace, piece.part, buffers), held, piece.live, piece.dead)
                if piece.call is None:
                    one.run(own)
                else:
                    self._launch_in_turn(next(turns), one.program, own)
                buffers.update(zip(piece.made, [result.buffer for result in results], strict=True))
            for slot in piece.done_with:
                del buffers[slot]
        return None

    def _launch_in_turn(self, turn: Turn, program: Compiled, cut: Cut) -> None:
        """Launch a collective when the other processes are at it, too."""
        with self.away():
            turn.wait()
            buffers, status = program.launch_watched(cut.trace.buffers, cut.trace.numbers)
        for (_, value), buffer in zip(cut.held, buffers, strict=True):
            value.buffer = buffer
        turn.launched(status)
        program.queue.inflight.keep_up()
