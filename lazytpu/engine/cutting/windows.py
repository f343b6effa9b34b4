"""Windows: a trace with collectives as one program, where all ranks are about to launch the same one.

A cut in pieces posts all of its collectives in one message, and each waits until all ranks have posted it. Unless
`options.collectives` is "checked" or "trusted", the message also has a mark: the digest of the program of the whole
trace, and of the collectives in it. If the marks of all members are equal, the control plane answers "whole" with the
first collective, and all ranks launch that program; otherwise all launch the pieces. One process decides once, from
what all ranks have posted, so no two ranks decide differently; and there is no message more.

1. A rank has a mark only once its program is compiled. That begins in the background once the cut has recurred, and
   pieces run until then. If XLA refuses the program, the rank has no mark, so all ranks run pieces.
2. While the control plane is asked, other threads may launch ahead, as in pieces: a peer may need such a value before
   it posts.
3. If the control plane answers that a rank is lost, the pieces run: what needs no other rank is computed, and the
   first collective raises the error.
4. If the collectives are among different ranks, such as the rows and columns of a mesh, the program runs on all ranks
   of the job, so that all marks must be equal. No rank knows the groups of others: they are derived from its own, which
   lie along axes of a mesh of all ranks (`Agreement.mesh_of`).
5. After the answer "whole", an error is a failure of the cut, and breaks its groups on all ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from lazytpu.engine.compiling.background import Background
from lazytpu.engine.compiling.compiler import Compiler
from lazytpu.engine.compiling.jobs import Job
from lazytpu.engine.cutting.agreement import Agreement, Call, Mark, Turn
from lazytpu.engine.cutting.cut import Cut
from lazytpu.engine.cutting.pieces import Pieces
from lazytpu.engine.cutting.strategies import Away, Strategy
from lazytpu.engine.errors.unexpected import note_bug
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.metrics import Metrics
from lazytpu.engine.recompiles import reasons
from lazytpu.engine.recompiles.whole_runs import WholeLog, WholeRuns, described, explained
from lazytpu.options import options
from lazytpu.runtime.xla.program import Program
from lazytpu.trace.trie import Record

RECURRENCES = 2
"""The number of cuts in pieces before the whole program is compiled."""
PATIENCE = 8
"""The number of times in a row that the ranks' marks may differ before this rank asks less often."""
NO_INPUTS = "it has no inputs"
OWN_PART = "lazytpu_dist.own_part.default"
MOST = 10
"""This rank asks at least at every 2^MOST-th cut."""


@dataclass(slots=True)
class Whole:
    """The whole program of a cut: not yet there (`job` compiles it), there, or refused.

    `differed` counts the times in a row that the ranks' marks differed. `digest` is that of its mark, and `about`
    describes the cut. `counted` is its entry in `lazytpu.explain()`.
    """

    counted: WholeRuns
    cuts: int = 0
    job: Job | None = None
    program: Compiled | None = None
    is_refused: bool = False
    differed: int = 0
    digest: str = ""
    about: str = ""

    def refuse(self, why: str) -> None:
        """Run pieces for good, for this reason."""
        self.is_refused, self.job, self.counted.refused = True, None, why

    def asks(self, number: int) -> bool:
        """Return whether this rank posts its mark with the cut whose first collective has this number. Ranks that ask
        less often ask at the same cuts."""
        less = min(MOST, self.differed - PATIENCE + 1)
        return less <= 0 or number % (1 << less) == 0

    def mark(self) -> Mark:
        """Return the mark of a cut that has the program. It has a description once ranks differ."""
        return Mark(self.digest, self.about if self.differed else "")

    def decided(self, whole: bool) -> None:
        """Count an answer of the control plane."""
        self.differed = 0 if whole else self.differed + 1
        self.counted.count(whole)


class Windows:
    """The whole programs of traces with collectives."""

    def __init__(self, compiler: Compiler, background: Background):
        self.compiler = compiler
        self.background = background
        self.log = WholeLog()

    def choose(self, cut: Cut, pieces: Pieces, agreement: Agreement) -> Strategy:
        """Return the strategy of a cut: `pieces`, or the window that has them."""
        key = (cut.live, cut.dead)
        whole: Whole | None = cut.plan.whole.get(key)
        if whole is None:
            whole = cut.plan.whole[key] = self._begin(cut)
        whole.cuts += 1
        if whole.program is None and not whole.is_refused:
            self._share(whole, cut)
        if whole.program is None and not whole.is_refused and whole.cuts > RECURRENCES:
            self._prepare(whole, cut, pieces.calls, agreement)
        if whole.program is not None:
            number = agreement.posted(pieces.calls[0].group) // len(pieces.calls)
            if whole.asks(number):
                pieces.mark = whole.mark()
                return Window(pieces, whole.program, whole, self.compiler.metrics)
        pieces.mark = Mark("", whole.about)
        whole.counted.pieces += 1
        return pieces

    def _begin(self, cut: Cut) -> Whole:
        records = cut.trace.state.records()
        return Whole(self.log.begins(records), about=described(records, cut.live, cut.dead, cut.trace.read))

    def _share(self, whole: Whole, cut: Cut) -> None:
        """Use a program that was compiled for other live results, if it serves: which results are alive depends on the
        time of garbage collection (R4)."""
        needed, free = frozenset(cut.live), frozenset(cut.dead)
        for other in cut.plan.whole.values():
            program = other.program
            if program is not None and needed.issubset(program.binding.live) and program.binding.donated <= free:
                whole.program, whole.digest, whole.job = program, other.digest, None
                return

    def _prepare(self, whole: Whole, cut: Cut, calls: Sequence[Call], agreement: Agreement) -> None:
        """Have the whole program compiled, and take it once it is there."""
        records = cut.trace.state.records()
        of_job = of_all_ranks(records, agreement)
        why = obstacle(cut, of_job or records)
        if why:
            whole.refuse(why)
            return
        try:
            if whole.job is None:
                line = next(record.line for record in records if record.collective)
                prepared = self.compiler.prepare(cut.trace, cut.live, cut.dead, reasons.whole(line), of_job)
                if prepared.ready is None and options.background_compile:
                    whole.job = self.background.whole(prepared)
                else:
                    self._take(whole, self.compiler.build(prepared), calls, of_job)
            elif not options.background_compile:  # begun before the option was changed
                self.background.join(whole.job)
            if whole.job is not None and whole.job.done.is_set():
                if whole.job.error is not None:
                    raise whole.job.error
                if whole.job.compiled is not None:
                    self._take(whole, whole.job.compiled, calls, of_job)
        except Exception as error:  # noqa: BLE001  (the pieces run, and raise the error if they have it as well)
            note_bug("preparing the program of a window", error)
            whole.refuse(f"its program could not be compiled: {type(error).__name__}: {error}")

    def _take(self, whole: Whole, compiled: Compiled, calls: Sequence[Call], of_job: Sequence[Record]) -> None:
        """Use a compiled program from now on."""
        whole.job = None
        program = compiled.program
        if not isinstance(program, Program):
            whole.refuse("it is compiled in parts (clusters)")
        elif not compiled.binding.inputs:
            whole.refuse(NO_INPUTS)
        else:
            assert program.key is not None
            # Ranks name their groups differently if these have different members.
            meshes = [mesh_of(record) for record in of_job if record.collective] or [None] * len(calls)
            groups = [mesh or (call.group, call.members) for mesh, call in zip(meshes, calls, strict=True)]
            listed = "\n".join(f"{group} {call.signature}" for group, call in zip(groups, calls, strict=True))
            digest = hashlib.sha256(f"{program.key}\n{listed}".encode()).hexdigest()
            whole.program, whole.digest = compiled, f"{digest[:32]}/{len(calls)}"


def of_all_ranks(records: Sequence[Record], agreement: Agreement) -> list[Record]:
    """Return the records as all ranks have them. Collectives among different ranks are on a mesh of all ranks of the
    job. A rank's own part of a tensor is at a number that the program computes. Empty if there is neither, or if a
    group lies along no axes of such a mesh."""
    groups_of = [_group_of(record) for record in records]
    groups = {members for members in groups_of if members is not None}
    several = len(set(map(frozenset, groups))) > 1
    if len(groups) > 1 and not several:  # the same ranks in different orders
        return []
    meshes: dict[tuple[int, ...], Any] = {
        members: agreement.mesh_of(members) if several else ((len(members),), (0,)) for members in groups
    }
    chosen = [
        members if several or not record.collective else None
        for record, members in zip(records, groups_of, strict=True)
    ]
    if not any(chosen) or None in meshes.values():
        return []

    def changed(record: Record, mesh: Sequence[int], axes: Sequence[int]) -> Record:
        return replace(record, arguments={**record.arguments, "mesh": mesh, "axes": axes})

    return [
        record if members is None else changed(record, *meshes[members])
        for record, members in zip(records, chosen, strict=True)
    ]


def _group_of(record: Record) -> tuple[int, ...] | None:
    """Return the ranks of a collective, or among which the rank has its own part of a tensor; None for other ops."""
    ranks = record.arguments.get("members", record.arguments.get("among") if str(record.op) == OWN_PART else None)
    return None if ranks is None else tuple(ranks)


def mesh_of(record: Record) -> Any:
    """Return the mesh of a collective on all ranks of the job, and its axes; None for any other."""
    mesh = record.arguments.get("mesh")
    return (tuple(mesh), tuple(record.arguments["axes"])) if mesh else None


def obstacle(cut: Cut, records: Sequence[Record]) -> str:
    """Return why a cut with collectives has no whole program; empty if it may have one."""
    if cut.trace.mode not in ("fused", "lazy"):
        return f"mode {cut.trace.mode} runs each op by itself"
    collectives = [record for record in records if record.collective]
    among = {tuple(record.arguments["members"]) for record in collectives}
    if len(among) > 1 and not all(map(mesh_of, collectives)):
        return "its collectives are among different ranks, which lie along no axes of a mesh of all ranks"
    if not cut.live:
        return "none of its results is used"
    if not cut.plan.inputs:  # XLA would reduce constants without the other ranks
        return NO_INPUTS
    return ""


@dataclass(slots=True)
class Window(Strategy):
    """Run a trace with collectives as one program if all ranks do, else its `pieces`."""

    pieces: Pieces
    program: Compiled
    whole: Whole
    metrics: Metrics
    turns: Sequence[Turn] | None = None
    away: Away = nullcontext
    hit: bool = field(init=False)

    collective = True

    def __post_init__(self) -> None:
        self.hit = self.pieces.hit

    @property
    def programs(self) -> Sequence[Any]:
        return [*self.pieces.programs, self.program]

    def defer(self, away: Away) -> Sequence[Turn]:
        self.away = away
        self.turns = self.pieces.defer(away)
        return self.turns

    def run(self, cut: Cut) -> Strategy | None:
        turns = self.pieces.defer(self.away) if self.turns is None else self.turns
        is_whole = self._is_whole(turns[0])
        self.whole.decided(is_whole)
        if not is_whole:
            self.metrics.split_windows += 1
            split = turns[0].split()
            if split:
                self.whole.counted.why = explained(split, self.whole.about, cut.trace.state.records())
            return self.pieces.run(cut)
        self.metrics.windows += 1
        self._launch(turns, cut)
        return None

    def _is_whole(self, first: Turn) -> bool:
        """Wait for the other ranks, and return whether all launch the program. If they will not come, the pieces raise
        the error."""
        try:
            with self.away():
                return first.is_whole()
        except RuntimeError:
            return False

    def _launch(self, turns: Sequence[Turn], cut: Cut) -> None:
        with self.away():
            for turn in turns:
                turn.wait()
            groups = [turn.members for turn in turns]
            buffers, status = self.program.launch_watched(cut.trace.buffers, cut.trace.numbers, groups)
        by_slot = dict(zip(self.program.binding.live, buffers, strict=True))
        for slot, value in cut.held:
            value.buffer = by_slot[slot]
        for turn in turns:
            turn.launched(status)
        self.program.queue.inflight.keep_up()
