"""A trace with collectives in pieces: each collective is a program of its own, and so are the records between two of
them.

On the wire, only its members and their order identify a collective. So its program must be the same on all members,
while the surrounding records may differ between ranks (R8).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from lazytpu.engine.cutting.agreement import NO_MARK, Agreement, Call, Mark, Turn
from lazytpu.engine.cutting.cut import Cut, part_of
from lazytpu.engine.cutting.strategies import Away, Strategy
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.trace.extract import Extracted, Slots, extract
from lazytpu.trace.trie import CutPlan, Operand, Record


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a trace that runs as one program.

    - `live`: its slots that are needed later.
    - `dead`: its inputs that are not needed after it.
    - `made`: the slots in the whole trace that correspond to `live`.
    - `done_with`: results of pieces, as slots of the whole trace, that are not needed after this piece. Inputs of the
      trace are held until its end.
    - `given`: pairs of the index of a live slot of the trace and its index in `live`.
    - `call`: the collective, if it is one. It runs whether its result is needed or not.
    - `idle`: whether there is nothing to run.
    """

    part: Extracted
    live: tuple[int, ...]
    dead: tuple[int, ...]
    made: tuple[int, ...]
    done_with: tuple[int, ...]
    given: tuple[tuple[int, int], ...]
    call: Call | None
    idle: bool


def pieces_of(plan: CutPlan, records: Sequence[Record], live: Sequence[int], dead: Sequence[int]) -> list[Piece]:
    """Return the pieces of a trace whose results are the slots `live` and whose inputs `dead` may be donated."""
    slots = Slots(records)
    # Split the records before and after each collective.
    chosen: list[list[int]] = [[]]
    for i, record in enumerate(records):
        if record.collective:
            chosen.extend(([i], []))
        else:
            chosen[-1].append(i)
    indices = [piece_part for piece_part in chosen if piece_part]
    extracts = [extract(records, piece_part, slots) for piece_part in indices]
    # Determine the last piece that uses each slot, except slots that outlive the trace.
    last = {slot: i for i, piece_part in enumerate(extracts) for slot in piece_part.origins}
    kept = {*live, *(slot for i, slot in enumerate(plan.inputs) if i not in dead)}
    places = {slot: i for i, slot in enumerate(live)}
    pieces: list[Piece] = []
    results: set[int] = set()
    for i, (piece_part, within) in enumerate(zip(extracts, indices, strict=True)):
        ending = {slot for slot in piece_part.origins if last[slot] == i and slot not in kept}
        inside = set(within)
        computed = [new for new, old in enumerate(piece_part.origins) if slots.makers.get(old) in inside]
        first = records[within[0]]
        call = _call(first, slots) if first.collective else None
        needed = tuple([new for new in computed if call is not None or piece_part.origins[new] not in ending])
        made_slots = tuple([piece_part.origins[new] for new in needed])
        results.update(made_slots)
        pieces.append(
            Piece(
                piece_part,
                needed,
                tuple([k for k, slot in enumerate(piece_part.inputs) if slot in ending]),
                made_slots,
                tuple(ending & results),
                tuple([(places[slot], i) for i, slot in enumerate(made_slots) if slot in places]),
                call,
                not needed and not any(records[k].checks for k in within),
            )
        )
    return pieces


def groups_of(records: Sequence[Record]) -> dict[str, Sequence[int]]:
    """Return the groups of a trace's collectives, each with its members."""
    calls: list[Any] = [record.arguments for record in records if record.collective]
    return {call["group"]: call["members"] for call in calls}


def _call(record: Record, known: Slots) -> Call:
    """Return the description of a collective, such as `all_reduce(add) float32[4, 2]`."""
    arguments = dict(record.arguments)
    operand, group, members = arguments.pop("self"), arguments.pop("group"), arguments.pop("members")
    for where in ("mesh", "axes"):  # of an imagined job
        arguments.pop(where, None)
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
    """Run a trace with collectives: its `pieces` in order, each by its strategy, or None if there is nothing to run.
    Each collective waits for its turn, until the other ranks have reached the same one. They are posted with `mark`."""

    pieces: Sequence[tuple[Piece, Strategy | None]]
    agreement: Agreement
    hit: bool
    turns: Sequence[Turn] | None = None
    away: Away = nullcontext
    mark: Mark = NO_MARK

    program = None
    collective = True

    @property
    def programs(self) -> Sequence[Any]:
        return [
            program for piece, strategy in self.pieces if strategy and not piece.idle for program in strategy.programs
        ]

    def defer(self, away: Away) -> Sequence[Turn]:
        self.away, self.turns = away, self.announce()
        return self.turns

    @property
    def calls(self) -> Sequence[Call]:
        """The collectives, in order."""
        return [piece.call for piece, _ in self.pieces if piece.call is not None]

    def announce(self) -> Sequence[Turn]:
        """Announce the collectives to the other ranks and return their tickets."""
        return self.agreement.post(self.calls, self.mark)

    def run(self, cut: Cut) -> Strategy | None:
        turns = iter(self.announce() if self.turns is None else self.turns)
        buffers = cut.inputs()
        for piece, strategy in self.pieces:
            if strategy is not None:
                # A result of the whole trace gets its buffer once its piece has run. A deferred buffer may be shared.
                results = [Result() for _ in piece.live]
                for place, i in piece.given:
                    results[i] = cut.held[place][1]
                held = list(zip(piece.live, results, strict=True))
                plan = piece.part.state.plan or CutPlan.of(piece.part.state)
                piece_cut = Cut(plan, part_of(cut.trace, piece.part, buffers), held, piece.live, piece.dead)
                if piece.call is None:
                    strategy.run(piece_cut)
                else:
                    self._launch_in_turn(next(turns), strategy.program, piece_cut)
                buffers.update(zip(piece.made, [result.buffer for result in results], strict=True))
            for slot in piece.done_with:
                del buffers[slot]
        return None

    def _launch_in_turn(self, turn: Turn, program: Compiled, cut: Cut) -> None:
        """Launch a collective once the other ranks have reached it."""
        with self.away():
            turn.wait()
            buffers, status = program.launch_watched(cut.trace.buffers, cut.trace.numbers, [turn.members])
        for (_, value), buffer in zip(cut.held, buffers, strict=True):
            value.buffer = buffer
        turn.launched(status)
        program.queue.inflight.keep_up()
