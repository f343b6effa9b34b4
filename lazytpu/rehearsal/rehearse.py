"""Rehearsals: a step is recorded as it would run, and nothing runs.

The step's Python runs in full, in a loop such as `result = step()`. Where its trace would be cut, the program is noted,
and what it would have made stands on the device as zeros. A program that the loop would launch in the next call, since
an optimizer only marks the end, is noted there: by then a `zero_grad()` may have freed the gradients. A read in the
middle that depends on little is computed, since a step may decide by it, as transformers do by their masks. After the
step, everything that it overwrote is what it was before, and so are the modules, optimizers and schedulers of the
process (`keeping`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lazytpu import wiring
from lazytpu.aten import dtypes
from lazytpu.engine.engine import Engine
from lazytpu.engine.errors.undo import before_trace, root_of
from lazytpu.frontend.recording.names import slot_names
from lazytpu.frontend.recording.tensors import STASH, recorder
from lazytpu.frontend.torch_private import stash_in_thread
from lazytpu.ir.types import array_dtype
from lazytpu.rehearsal.keeping import Kept
from lazytpu.runtime import client
from lazytpu.runtime.buffer import Buffer
from lazytpu.trace.cuts import MARK, STEP, SYNC
from lazytpu.trace.recorder import Recorder, Trace
from lazytpu.trace.trie import CutPlan, Ended, Record, State
from lazytpu.trace.value import EMPTY, Layout, Value

LITTLE = 1 << 20
"Bytes of inputs that a read may depend on to be computed."
CALLS = 5
"""How often the step is called until two calls are alike: a first step makes an optimizer's state as well, and what a
call leaves pending runs in the next."""
ENDS = (MARK, STEP, SYNC)
"Causes of cuts that come again in each call of a step. Whether others do depends on what is pending when it begins."


@dataclass(frozen=True, slots=True)
class Part:
    """One program of the step: where its trace ended, the slots alive then and the inputs dead, and names of slots."""

    state: State
    live: tuple[int, ...]
    dead: tuple[int, ...]
    names: dict[int, str]

    @property
    def records(self) -> list[Record]:
        """The ops that were recorded for it."""
        return self.state.records()


class Imagined(Buffer):
    """Memory that a rehearsed program would have made: zeros, should somebody read it, or what was computed after all.
    `original` is what its storage held before the rehearsal, None for what was made in it; `shared` when another value
    holds that as well."""

    __slots__ = ("_array", "_layout", "original", "shared")

    def __init__(self, layout: Layout, original: Any, shared: bool, computed: Any = None) -> None:
        self._layout, self._array = layout, computed
        self.original, self.shared = original, shared
        self.nbytes, self.origin, self.pins, self.error, self.outcome = 0, None, 0, None, None  # counted in no memory

    @property
    def array(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Zeros, made when somebody asks."""
        if self._array is None:
            dtype = array_dtype(dtypes.name(self._layout.dtype))
            self._array = client.to_device(np.zeros(self._layout.memory_shape, dtype))
        return self._array

    def release(self) -> None:
        """Nothing to give up."""


class RehearsalRecorder(Recorder):
    """Records the calls of a step in the mode of `outer`, and notes their programs instead of running them."""

    __slots__ = ("_begun_before", "_engine", "_late", "_made", "_parts", "_reading", "_recurs")

    def __init__(self, engine: Engine, outer: Recorder, platform: str) -> None:
        self._parts: list[Part] = []
        self._late: list[Part] = []
        self._begun_before: int | None = None
        self._recurs = False
        self._engine = engine
        self._reading = False
        self._made: list[weakref.ref[Value]] = []
        super().__init__(State(None, None, None, 0, 0, 0), self._note, answers=engine.answers)
        self.platform = platform
        self.choose_mode("fused" if outer.eager else outer.own_mode)  # programs of one op each say nothing about a TPU

    def begin_call(self) -> None:
        """The step is called, with or without something pending from the call before."""
        self._parts, self._late, self._recurs = [], [], False
        self._begun_before = None if self.state is self.root else self.epoch

    def end_call(self) -> list[Part]:
        """The programs of the call, those last that the call before began. A step that nothing cuts is cut here; of
        one that is cut in each call, what is pending runs in the next."""
        if not self._recurs and not isinstance(self.state, Ended):
            self.cut(MARK)
        return self._parts + self._late

    def cut(self, cause: str | None = None, place: Any = None) -> None:
        """As any recorder; a cut that comes in each call is remembered."""
        self._recurs = self._recurs or cause in ENDS or isinstance(self.state, Ended)
        super().cut(cause, place)

    def read(self, value: Value, place: Any = None) -> None:
        self._reading = not isinstance(self.state, Ended)  # after the step, nothing is decided by what is read
        try:
            super().read(value, place)
        finally:
            self._reading = False

    def _note(self, trace: Trace) -> None:
        """In place of running a trace."""
        plan = CutPlan.of(trace.state)
        held = [(slot, value) for slot in plan.results if (value := trace.values[slot]()) is not None]
        live = tuple([slot for slot, _ in held])
        buffers = trace.buffers
        dead = [i for i, slot in enumerate(plan.inputs) if trace.values[slot]() is None and buffers[i].pins == 1]
        if live:
            parts = self._late if trace.epoch == self._begun_before else self._parts
            parts.append(Part(trace.state, live, tuple(dead), slot_names(trace.epoch)))
        contents, predecessors = before_trace(trace)
        if self._reading:
            self._compute(trace)
        for slot, value in held:
            root = root_of(slot, predecessors)
            before = contents.get(root)
            shared = before is not None and trace.values[root]() is not None
            if isinstance(before, Imagined):
                before, shared = before.original, shared or before.shared
            computed = value.buffer.array if isinstance(value.buffer, Buffer) else None
            value.buffer = Imagined(value.layout, before, shared, computed)
            self._made.append(weakref.ref(value))
        for buffer in buffers:
            buffer.pins -= 1

    def _compute(self, trace: Trace) -> None:
        """Run a trace after all, if it takes little of what was there before; it overwrites nothing."""
        buffers = trace.buffers
        if any(isinstance(buffer, Imagined) for buffer in buffers) or sum(b.nbytes for b in buffers) > LITTLE:
            return
        for buffer in buffers:
            buffer.pins += 2  # one for the cut, and one that keeps it from being donated
        try:
            self._engine.cut_trace(trace)
        finally:
            for buffer in buffers:
                buffer.pins -= 1

    def put_back(self) -> None:
        """Give every storage that is still there what it held before; what was made in the rehearsal has nothing."""
        alive = [value for each in self._made if (value := each()) is not None and isinstance(value.buffer, Imagined)]
        users: dict[int, int] = {}
        for value in alive:
            users[id(value.buffer.original)] = users.get(id(value.buffer.original), 0) + 1
        for value in alive:
            before, shared = value.buffer.original, value.buffer.shared
            if before is None:
                value.buffer = lost = Buffer(None, 0)
                lost.error = RuntimeError("this tensor was made while lazytpu rehearsed a step: it never had a value")
                continue
            value.buffer = before
            if before is not EMPTY and (shared or users[id(before)] > 1):
                before.pins += 1  # that one of its values is dead proves nothing (R5)


def rehearse_once(call: Callable[[], Any], platform: str = "tpu") -> list[Part]:
    """The programs of one call, in lazy mode, of a function that changes nothing but what it makes: one, unless it
    reads. What was recorded before is run first. Raises what the call raises, and NotImplementedError for an op that
    `platform` lacks."""
    engine, outer = wiring.start(), recorder()
    outer.cut(MARK)
    mine = RehearsalRecorder(engine, outer, platform)
    mine.choose_mode("lazy")
    stash_in_thread(STASH, mine)
    result: Any = None
    try:
        mine.begin_call()
        result = call()
        return mine.end_call()
    finally:
        del result
        stash_in_thread(STASH, outer)
        mine.put_back()


def rehearse(step: Callable[[], Any], platform: str = "tpu") -> list[Part]:
    """The programs of a step that is called again and again, as they are when two calls are alike. Its caller holds
    what the last call returned. What was recorded before is run first. Raises what the step raises, with everything as
    it was before, and NotImplementedError for an op that `platform` lacks."""
    outer = recorder()
    outer.cut(MARK)
    kept, mine = Kept(), RehearsalRecorder(wiring.start(), outer, platform)
    stash_in_thread(STASH, mine)
    before: list[tuple[State, Any, Any]] | None = None
    parts: list[Part] = []
    result: Any = None
    try:
        for _ in range(CALLS):
            mine.begin_call()
            result = step()  # until it returns, the last result is held
            parts = mine.end_call()
            now = [(part.state, part.live, part.dead) for part in parts]
            if now == before:
                break
            before = now
        return parts
    finally:
        del result
        stash_in_thread(STASH, outer)
        mine.cut()  # what the last call left
        kept.restore()
        mine.put_back()
