"""Rehearsals: a step is recorded as if it ran, but nothing runs.

The step's Python code runs in full, in a loop such as `result = step()`. At each cut of its trace, the program is
noted, and its results become zeros on the device. If an optimizer only marks the end of the step, the loop would launch
the program in the next call, so it is noted in that call: by then a `zero_grad()` may have freed the gradients. A read
inside the step that depends on little data is computed, since the step may branch on it, as transformers do on their
masks. Afterwards every tensor that the step overwrote has its old value, and so have the modules, optimizers and
schedulers of the process (`snapshot`).
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lazytpu import wiring
from lazytpu.aten import dtypes
from lazytpu.engine.cutting.cut import Cut
from lazytpu.engine.cutting.pieces import Piece, pieces_of
from lazytpu.engine.cutting.windows import obstacle, of_all_ranks
from lazytpu.engine.engine import Engine
from lazytpu.engine.errors.undo import before_trace, root_of
from lazytpu.frontend.names import slot_names
from lazytpu.frontend.tensors import STASH, recorder
from lazytpu.frontend.torch_private import stash_in_thread
from lazytpu.ir.types import array_dtype
from lazytpu.options import options
from lazytpu.rehearsal.as_if_equal import computed, is_imagined
from lazytpu.rehearsal.snapshot import Snapshot
from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.xla import client
from lazytpu.trace import cuts as trace_cuts
from lazytpu.trace.cuts import MARK, STEP, SYNC
from lazytpu.trace.pending import Trace
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import CutPlan, Ended, Record, State
from lazytpu.trace.value import EMPTY, Layout, Value, resident

LITTLE = 1 << 20
"A read is computed if it depends on at most this many bytes of inputs."
CALLS = 5
"""The most calls of the step until two calls are equal. A first step also creates an optimizer's state, and pending ops
of one call run in the next."""
ENDS = (MARK, STEP, SYNC)
"""Causes of cuts that recur in every call of a step. Other causes depend on the ops that are pending when it begins."""


@dataclass(frozen=True, slots=True)
class RehearsedProgram:
    """A program of the step: the final state of its trace, the slots that are alive and the inputs that are dead there,
    and names of slots. `of_job` has its ops as all ranks of a job have them, if its collectives are among different
    ranks."""

    state: State
    live: tuple[int, ...]
    dead: tuple[int, ...]
    names: dict[int, str]
    of_job: tuple[Record, ...] = ()

    @property
    def records(self) -> list[Record]:
        """The ops recorded for the program."""
        return list(self.of_job) or self.state.records()


class Imagined(Buffer):
    """The buffer of a rehearsed program's result: zeros if it is read, or the computed value if there is one.

    `host` has the elements if the host knows them. `original` is the storage's buffer before the rehearsal, None if the
    storage was created in it. `shared` says whether another value has the same buffer.
    """

    __slots__ = ("_array", "_layout", "host", "original", "shared")

    def __init__(
        self,
        layout: Layout,
        original: Any,
        shared: bool,
        computed: Any = None,
        host: np.ndarray[Any, Any] | None = None,
    ) -> None:
        self._layout, self._array, self.host = layout, computed, host
        self.original, self.shared = original, shared
        self.nbytes, self.origin, self.pins, self.error, self.outcome = 0, None, 0, None, None  # counted in no memory

    @property
    def array(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value; zeros are created on first use."""
        if self._array is None:
            dtype = array_dtype(dtypes.name(self._layout.dtype))
            self._array = client.to_device(np.zeros(self._layout.memory_shape, dtype))
        return self._array

    def release(self) -> None:
        """Does nothing: there is no memory to release."""


@dataclass(frozen=True, slots=True)
class _Assigned:
    """A storage that was assigned another value in a rehearsal: its previous `layout`, `value` and `original` buffer,
    None if it was created in the rehearsal. `shared` says whether another value has the same buffer."""

    storage: weakref.ref[Any]
    value: weakref.ref[Value]
    layout: Layout
    original: Any
    shared: bool


class RehearsalRecorder(Recorder):
    """Records the calls of a step in the mode of `outer` and notes their programs instead of running them."""

    __slots__ = (
        "_assigned",
        "_begun_before",
        "_engine",
        "_late",
        "_made",
        "_pieces",
        "_programs",
        "_reading",
        "_recurs",
    )

    def __init__(self, engine: Engine, outer: Recorder, platform: str) -> None:
        self._programs: list[RehearsedProgram] = []
        self._late: list[RehearsedProgram] = []
        self._begun_before: int | None = None
        self._recurs = False
        self._engine = engine
        self._reading = False
        self._made: list[weakref.ref[Value]] = []
        self._assigned: dict[int, _Assigned] = {}  # by the storage's id
        self._pieces: dict[Any, list[Piece]] = {}  # of traces with collectives
        super().__init__(State(None, None, None, 0, 0, 0), self._note, answers=engine.answers)
        self.platform = platform
        # programs of single ops are not representative of a TPU
        self.choose_mode("fused" if outer.eager else outer.own_mode)

    def begin_call(self) -> None:
        """Start a call of the step. Ops of the previous call may be pending."""
        self._programs, self._late, self._recurs = [], [], False
        self._begun_before = None if self.state is self.root else self.epoch

    def end_call(self) -> list[RehearsedProgram]:
        """Return the programs of the call; programs that the previous call began come last. A step without cuts is cut
        here. If a cut recurs in every call, pending ops run in the next one."""
        if not self._recurs and not isinstance(self.state, Ended):
            self.cut(MARK)
        return self._programs + self._late

    def cut(self, cause: str | None = None, place: Any = None) -> trace_cuts.Cut | None:
        """Cut as any recorder does, and note whether the cut recurs in every call."""
        self._recurs = self._recurs or cause in ENDS or isinstance(self.state, Ended)
        return super().cut(cause, place)

    def assign(self, storage: Any, value: Value) -> None:
        """Assign as any recorder does, and save the buffer that the storage had before the rehearsal."""
        with self.lock:
            saved = self._assigned.get(id(storage))
            if saved is None or saved.storage() is not storage:
                self._assigned[id(storage)] = self._before(storage)
        super().assign(storage, value)

    def leave(self, value: Value, buffer: Any) -> None:
        """Let a value that the host knows leave the trace. If it overwrites a storage, the previous buffer is saved."""
        original, shared = self._original(value)
        if original is not None:
            buffer = Imagined(value.layout, original, shared, buffer.array, buffer.host)
            self._made.append(weakref.ref(value))
        super().leave(value, buffer)

    def _before(self, storage: Any) -> _Assigned:
        value: Value = storage._value
        original, shared = self._original(value)
        return _Assigned(weakref.ref(storage), weakref.ref(value), value.layout, original, shared)

    def _original(self, value: Value) -> tuple[Any, bool]:
        """Return the buffer that a value's storage had before the rehearsal, None if it was created in it, and whether
        another value has that buffer."""
        original, shared = value.buffer, False
        if original is None and value.epoch == self.epoch:
            state = self.state.parent if isinstance(self.state, Ended) else self.state
            pending = self._trace(state)
            contents, predecessors = before_trace(pending)
            root = root_of(value.slot, predecessors)
            original, shared = contents.get(root), self.values[root]() is not None
        if isinstance(original, Imagined):
            original, shared = original.original, shared or original.shared
        return original, shared

    def read(self, value: Value, place: Any = None) -> trace_cuts.Cut | None:
        self._reading = not isinstance(self.state, Ended)  # after the step, no decision depends on the value
        try:
            return super().read(value, place)
        finally:
            self._reading = False

    def _note(self, trace: Trace) -> None:
        """Note a trace's program and give its results imagined buffers, instead of running it."""
        plan = CutPlan.of(trace.state)
        cut = Cut.of(plan, trace)
        programs = self._late if trace.epoch == self._begun_before else self._programs
        programs.extend(self._programs_of(cut))
        contents, predecessors = before_trace(trace)
        if is_imagined(records := trace.state.records()):
            if self._reading and self._is_little(trace):
                self._compute_as_if_equal(cut)
        elif not (self._reading and self._compute(trace)) and plan.collective:
            groups = [record.arguments["group"] for record in records if record.collective]
            self._engine.cutter.order.agreement.rehearsed(groups)
        for slot, value in cut.held:
            root = root_of(slot, predecessors)
            before = contents.get(root)
            shared = before is not None and trace.values[root]() is not None
            if isinstance(before, Imagined):
                before, shared = before.original, shared or before.shared
            computed = value.buffer.array if isinstance(value.buffer, Buffer) else None
            value.buffer = Imagined(value.layout, before, shared, computed)
            self._made.append(weakref.ref(value))
        for buffer in trace.buffers:
            buffer.pins -= 1

    def _programs_of(self, cut: Cut) -> list[RehearsedProgram]:
        """Return the programs that a cut runs: one, or in a process group the pieces of a trace with collectives. In an
        imagined job, the collectives are part of one program; and with `options.collectives` "together", as in
        a steady step."""
        plan, trace, live, dead = cut.plan, cut.trace, cut.live, cut.dead
        records = trace.state.records() if plan.collective else []
        imagined = is_imagined(records)
        of_job = of_all_ranks(records, self._engine.cutter.order.agreement) if records and not imagined else []
        together = options.collectives == "together" and not obstacle(cut, of_job or records)
        if not plan.collective or imagined or together:
            if live or (plan.checks and options.bounds_check):
                return [RehearsedProgram(trace.state, live, dead, slot_names(trace.epoch), tuple(of_job))]
            return []
        key = trace.state, live, dead
        pieces = self._pieces.get(key)
        if pieces is None:
            pieces = self._pieces[key] = pieces_of(plan, records, live, dead)
        names = slot_names(trace.epoch)
        return [
            RehearsedProgram(
                piece.part.state,
                piece.live,
                piece.dead,
                {new: names[old] for new, old in enumerate(piece.part.origins) if old in names},
            )
            for piece in pieces
            if not piece.idle
        ]

    def _compute(self, trace: Trace) -> bool:
        """Run a trace after all if it depends on little data from before the rehearsal, and return whether it ran. It
        overwrites nothing. Its collectives wait for the other processes, which have to rehearse as well: in its second
        step, DistributedDataParallel fixes its buckets by a broadcast that it reads."""
        if not self._is_little(trace):
            return False
        buffers = trace.buffers
        for buffer in buffers:
            buffer.pins += 2  # one for the cut, one to prevent donation
        try:
            self._engine.cut_trace(trace)
        finally:
            for buffer in buffers:
                buffer.pins -= 1
        return True

    def _is_little(self, trace: Trace) -> bool:
        """Return whether a trace depends on little data from before the rehearsal."""
        buffers = trace.buffers
        return not any(isinstance(b, Imagined) for b in buffers) and sum(b.nbytes for b in buffers) <= LITTLE

    def _compute_as_if_equal(self, cut: Cut) -> None:
        """Compute a trace of an imagined job as if all ranks held the same, if the host can."""
        arrays = computed(cut.plan, cut.trace, cut.live)
        for (_, value), array in zip(cut.held, arrays or (), strict=arrays is not None):
            value.buffer = Buffer(array, 0)

    def put_back(self) -> None:
        """Restore the previous buffer of every live storage; storages created in the rehearsal get none."""
        alive = [value for ref in self._made if (value := ref()) is not None and isinstance(value.buffer, Imagined)]
        assigned = [assignment for assignment in self._assigned.values() if assignment.original is not None]
        users = Counter(id(value.buffer.original) for value in alive)
        users.update(id(assignment.original) for assignment in assigned)
        for value in alive:
            before, shared = value.buffer.original, value.buffer.shared
            if before is None:
                value.buffer = lost = Buffer(None, 0)
                lost.error = RuntimeError("this tensor was created in a rehearsal of a step and never had a value")
                continue
            value.buffer = before
            _pin(before, shared or users[id(before)] > 1)
        for assignment in assigned:
            storage, value = assignment.storage(), assignment.value()
            if storage is not None:
                if value is None or value.buffer is not assignment.original:
                    value = resident(assignment.layout, assignment.original)
                    _pin(assignment.original, assignment.shared or users[id(assignment.original)] > 1)
                storage._value = value


def _pin(buffer: Any, shared: bool) -> None:
    """Pin a buffer that several values share: the death of one of them does not allow donation (R5)."""
    if shared and buffer is not EMPTY:
        buffer.pins += 1


def rehearse_once(call: Callable[[], Any], platform: str = "tpu") -> list[RehearsedProgram]:
    """Return the programs of one call, in lazy mode, of a function that only changes tensors it creates: one program,
    unless it reads. Pending ops run first. Raises the errors of the call, and NotImplementedError for an op that
    `platform` lacks."""
    engine, outer = wiring.start(), recorder()
    outer.cut(MARK)
    inner = RehearsalRecorder(engine, outer, platform)
    inner.choose_mode("lazy")
    stash_in_thread(STASH, inner)
    result: Any = None
    try:
        inner.begin_call()
        result = call()
        return inner.end_call()
    finally:
        del result
        stash_in_thread(STASH, outer)
        inner.put_back()


def rehearse(step: Callable[[], Any], platform: str = "tpu") -> list[RehearsedProgram]:
    """Return the programs of a step that is called repeatedly, once two calls are equal. Its caller holds the result of
    the last call. Pending ops run first. Raises the errors of the step, with everything restored, and
    NotImplementedError for an op that `platform` lacks."""
    outer = recorder()
    outer.cut(MARK)
    snapshot, inner = Snapshot(), RehearsalRecorder(wiring.start(), outer, platform)
    stash_in_thread(STASH, inner)
    before: list[tuple[State, Any, Any]] | None = None
    programs: list[RehearsedProgram] = []
    result: Any = None
    try:
        for _ in range(CALLS):
            inner.begin_call()
            result = step()  # the last result stays alive until it returns
            programs = inner.end_call()
            now = [(program.state, program.live, program.dead) for program in programs]
            if now == before:
                break
            before = now
        return programs
    finally:
        del result
        stash_in_thread(STASH, outer)
        inner.cut()  # runs the pending ops of the last call
        snapshot.restore()
        inner.put_back()
