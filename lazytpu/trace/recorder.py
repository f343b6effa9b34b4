"""The recorder: it takes the ops of a logical thread through the trie, one state at a time, until a cut."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from lazytpu.interrupts import Interrupted, InterruptedAfter
from lazytpu.options import options
from lazytpu.trace.answers import answer
from lazytpu.trace.constants import ConstantReads
from lazytpu.trace.cuts import MARK, MODE, READ, REMEMBERED, STEP, Cut
from lazytpu.trace.pending import NO_READS, Reads, Trace
from lazytpu.trace.reads import Held, Rest, Split, relabel, split
from lazytpu.trace.trie import CutPlan, Ended, State
from lazytpu.trace.value import EMPTY, Layout, Value, again

_epochs = itertools.count(1)


def _gone() -> None:
    """In place of the reference to a value that no program has to compute: an interrupt came before it was created, or
    it is a known constant."""


class PendingElsewhere(Exception):
    """An operand is still pending in another recorder, which has to be cut first (R6)."""

    def __init__(self, value: Value):
        super().__init__("a value is pending in another thread's trace")
        self.value = value


PENDING = ("state", "epoch", "whole", "begun", "reads", "lent", "slots", "values", "buffers", "numbers")
"Of a recorder: its pending trace."
_pending = attrgetter(*PENDING)


class Recorder:
    """Records the ops of one logical thread.

    1. The pending trace is at `state`, which says how many `slots`, `buffers` and `numbers` it has. A record that fails
       is rolled back to these numbers.
    2. `values` refers to the value of each slot weakly, `buffers` holds those of inputs strongly until the cut (R4). So
       a value that is alive at a cut is a result of the program, and a dead one may be donated.
    3. Each pending trace pins the buffers of its inputs once (R5).
    4. A value knows one slot: of this trace, if it has its `epoch`. `lent` has the epoch and slot here of those that
       another recorder has admitted since, by their ids.
    5. `lock` is held while one op is recorded, `cut_lock` while a trace is turned into results. Nobody waits for a
       program, or cuts another recorder, with `lock` (R6).
    6. When a cut or a read is interrupted, all is pending again as before it, or has run.

    `cut_trace` is called with the Trace when it ends, `lose_trace` when it cannot run; `plan_of` keeps the plan of a
    state. The read of a constant cuts nothing: `answers` has the known constants. `whole` is the epoch of the last
    trace that was cut as a whole, and `begun` the time at which this one has begun.

    `mode` says when its ops run: `own_mode`, or the mode of the process. Lazy mode has a trie of its own, because a
    state stores where fused mode cuts. `eager` says that each op is cut at once; kernels check it after recording an
    op. `cuts` are the most recent other cuts. `platform` is where its programs will run, if not where those of this
    process do.
    """

    __slots__ = (
        "__weakref__", "answers", "begun", "buffers", "cut_lock", "cut_trace", "cuts", "eager", "ended_at", "epoch",
        "lent", "lock", "lose_trace", "mode", "numbers", "own_mode", "plan_of", "platform", "reads", "root", "roots",
        "slots", "state", "values", "whole",
    )  # fmt: skip

    def __init__(
        self,
        root: State,
        cut_trace: Callable[[Trace], None],
        plan_of: Callable[[State], CutPlan] = CutPlan.of,
        lose_trace: Callable[[Trace, BaseException], None] = lambda trace, error: None,
        lazy_root: State | None = None,
        answers: ConstantReads | None = None,
    ):
        self.lock = threading.RLock()  # held while one op is recorded
        self.cut_lock = threading.RLock()  # held while a trace of this recorder is turned into results
        self.roots = root, lazy_root or root
        self.state = self.root = root
        self.cut_trace = cut_trace
        self.plan_of = plan_of
        self.lose_trace = lose_trace
        self.answers = answers
        self.platform: str | None = None
        self.cuts: deque[Cut] = deque(maxlen=REMEMBERED)
        self.ended_at: Any = None  # where the user's program ended the step
        self.own_mode: str | None = None
        self._set_mode(options.mode)
        self._begin()

    def _set_mode(self, mode: str) -> None:
        with self.lock:
            self.mode = mode
            self.eager = mode in ("strict", "debug")
            before, self.root = self.root, self.roots[mode == "lazy"]
            if self.state is before:
                self.state = self.root

    def choose_mode(self, own: str | None, place: Any = None) -> None:
        """Use the mode `own`, or from now on that of the process (None). The pending trace is cut first; if that fails,
        the mode changes all the same."""
        self.own_mode = own
        mode = options.mode if own is None else own
        if mode != self.mode:
            try:
                self.cut(MODE, place)
            finally:
                self._set_mode(mode)

    def _begin(self) -> None:
        self.begun = time.perf_counter()
        self.state = self.root
        self.epoch = self.whole = next(_epochs)
        self.reads = NO_READS
        self.lent: dict[int, tuple[int, int]] = {}
        self.slots = 0
        self.values: list[Callable[[], Value | None]] = []
        self.buffers: list[Any] = []
        self.numbers: list[Any] = []

    def admit(self, value: Value) -> Any:
        """Give a slot to a value that this trace uses for the first time; returns its part of the key, which is its
        slot if the trace has it already, and it was lent. Raises PendingElsewhere, and the error that invalidated its
        buffer."""
        buffer = value.buffer
        if buffer is None:
            raise PendingElsewhere(value)
        if buffer.error is not None:
            raise again(buffer.error)
        owner = value.recorder
        if owner is not None and owner is not self:
            owner.lent[id(value)] = value.epoch, value.slot
        if self.lent:
            epoch, slot = self.lent.get(id(value), (-1, -1))
            if epoch == self.epoch and slot < self.slots and self.values[slot]() is value:
                value.epoch, value.slot, value.recorder = epoch, slot, self
                return slot
        self.values.append(weakref.ref(value))  # first: after an interrupt, rollback() undoes the slots by this list
        value.epoch = self.epoch
        value.slot = self.slots
        value.recorder = self
        self.slots += 1
        if buffer is EMPTY:
            return value.layout.empty_key
        buffer.pins += 1
        self.buffers.append(buffer)
        return value.layout.key

    def slot(self, value: Value) -> int:
        """The slot of a value that the trace has, whichever recorder has admitted it since."""
        slot = value.slot if value.epoch == self.epoch else self.admit(value)
        assert isinstance(slot, int)
        return slot

    def produce(self, layout: Layout) -> Value:
        """A new value, the result of the record being made."""
        slot = self.slots
        value = Value(layout, self.epoch, slot, None, self)
        self.slots = slot + 1
        self.values.append(weakref.ref(value))
        return value

    def assign(self, storage: Any, value: Value) -> None:
        """Let a storage hold another value, without a write by the current record."""
        storage._value = value

    def rollback(self) -> None:
        """Drop the values admitted by a failed record, so that the trace matches its state again."""
        state = self.state
        for reference in self.values[state.slots :]:
            value = reference()
            if value is not None and value.epoch == self.epoch:
                value.epoch = -1
        del self.values[state.slots :]
        self.values.extend([_gone] * (state.slots - len(self.values)))  # interrupted between the state and its results
        self.slots = state.slots
        for buffer in self.buffers[state.inputs :]:
            buffer.pins -= 1
        del self.buffers[state.inputs :]
        del self.numbers[state.numbers :]

    def end(self, place: Any = None) -> None:
        """The step ends here, at `place` in the user's program. The next record or read cuts the trace, so a value that
        dies before is no result (R4). In lazy mode only a read of the step's values cuts it."""
        with self.lock:
            state = self.state
            if state is self.root or isinstance(state, Ended):
                return
            if self.mode == "lazy":
                self.noted_reads().boundary = state.depth
            else:
                self.state = Ended(state)
            self.ended_at = place

    def cut(self, cause: str | None = None, place: Any = None) -> Cut | None:
        """End the trace: one program computes the buffers of its live values. Does nothing if nothing is recorded.

        `cause` is one of `lazytpu.trace.cuts`, remembered with the `place` in the user's program; a cut without a cause
        is not remembered, nor returned.
        """
        with self.cut_lock:
            with self.lock:
                state = self.state
                if state is self.root:
                    return None
                before = _pending(self)
                if isinstance(state, Ended):
                    state = state.parent
                    if cause is not MARK:
                        cause, place = STEP, self.ended_at
                trace = self._trace(state)
                cut = None if cause is None else Cut.of(cause, place, state)
                self._begin()
                epoch = self.epoch
            self._run(trace, before, (self.root, epoch), cut)
            return cut

    def answer(self, value: Value) -> None:
        """Give a pending value its buffer if nothing has to run for it: if it is a constant, or a number that the host
        knows."""
        with self.cut_lock:
            if value.buffer is None:  # (another thread may be faster)
                answer(self, value)

    def read(self, value: Value, place: Any = None) -> Cut | None:
        """Run the records that a pending value needs, so that it gets a buffer; other records stay pending. Returns the
        cut."""
        with self.cut_lock:
            if value.buffer is not None:
                return None
            with self.lock:
                parts = self._split(value)
                if parts is None:
                    before, trace, computed = None, None, []
                else:
                    before = _pending(self)
                    trace, computed = self._take(parts, value.slot)
                state, epoch, buffers = self.state, self.epoch, self.buffers  # which only a cut changes
            if parts is None or trace is None or before is None:
                return self.cut(READ, place)
            cut = Cut.of(READ, place, trace.state, state)
            self._run(trace, before, (state, epoch), cut, Rest(parts, buffers, computed))
            return cut

    def _trace(self, state: State) -> Trace:
        """All that is pending, at this state."""
        return Trace(state, self.epoch, self.buffers, self.numbers, self.values, self.begun, self.mode)

    def _run(
        self, trace: Trace, before: Sequence[Any], after: tuple[State, int], cut: Cut | None, rest: Rest | None = None
    ) -> None:
        """Turn `trace` into results, and remember the `cut`. `rest` are the records that a read left pending.

        If an interrupt ends the wait for its program, the recorder returns to `before`, with everything pending, and
        the exception of the signal's handler is raised. That is impossible if another thread has recorded since, so
        that the recorder has left the state and epoch `after`: then the trace runs first, and the exception is raised
        after it.
        """
        if cut is not None:
            self.cuts.append(cut)
        interrupt: BaseException | None = None
        done = False
        while not done:
            try:
                self.cut_trace(trace)
                done = True
            except InterruptedAfter as error:
                interrupt, done = error.__cause__, True
            except Interrupted as error:
                interrupt = error.__cause__
                with self.lock:
                    if (self.state, self.epoch) == after:
                        self._put_back(trace, before, rest)
                        if cut is not None:
                            self.cuts.remove(cut)
                        break
            except BaseException as error:
                if rest is not None:
                    rest.fill()
                    self._lose(error)
                raise
        if done and rest is not None:
            rest.fill()
        if interrupt is not None:
            try:
                raise interrupt
            finally:
                del interrupt  # its traceback holds this frame, and the frames of all callers (R4)

    def _put_back(self, trace: Trace, before: Sequence[Any], rest: Rest | None) -> None:
        """Undo a cut or a read: its trace is pending again."""
        epochs = trace.epoch, self.epoch
        for name, pending in zip(PENDING, before, strict=True):
            setattr(self, name, pending)
        for epoch in epochs:
            relabel(self.values, epoch, self.epoch)
        if rest is not None:
            for i in rest.parts.shared:
                self.buffers[i].pins -= 1

    def leave(self, value: Value, buffer: Any) -> None:
        """Give a value its buffer, and let it leave the trace: later ops take it as an input, so that they see the bits
        that were read."""
        value.buffer = buffer
        self.values[value.slot] = _gone
        value.epoch = -1

    def noted_reads(self) -> Reads:
        """Return the state of reads, for writing."""
        if self.reads is NO_READS:
            self.reads = Reads()
        return self.reads

    def _split(self, value: Value) -> Split | None:
        """How a read of `value` splits the trace; determined once for a state."""
        state = self.state
        if isinstance(state, Ended) or value.epoch != self.epoch:
            return None
        reads = self.plan_of(state).reads
        key = (value.slot, self.reads.left, self.reads.boundary)
        if key not in reads:
            reads[key] = split(state, *key)
        return reads[key]

    def _take(self, parts: Split, read: int) -> tuple[Trace, list[Value]]:
        """The part of the trace that runs for a read of the slot `read`, and the values in it that the rest needs;
        recording continues on the rest.

        Their entries among the rest's buffers are empty until the part has run.
        """
        first, rest, before = parts.first, parts.rest, self.epoch
        buffers, numbers, values = self.buffers, self.numbers, self.values
        taken: list[Callable[[], Value | None]] = [values[slot] for slot in first.origins]
        computed: list[Value] = []
        for _, slot, layout in parts.computed:
            value = taken[slot]()
            if value is None:
                value = Value(layout, -1, -1, None, self)
                taken[slot] = Held(value)
            computed.append(value)
        inputs = [buffers[i] for i in first.sources if i is not None]
        part_numbers = [numbers[i] for i in first.numbers]
        slot = first.slots[read]
        trace = Trace(first.state, next(_epochs), inputs, part_numbers, taken, self.begun, self.mode, slot)
        for i in parts.shared:
            buffers[i].pins += 1
        self.begun = time.perf_counter()
        self.state, self.epoch, self.slots = rest.state, next(_epochs), len(rest.origins)
        self.reads = Reads(left=rest.state.depth)
        self.values = [values[slot] for slot in rest.origins]
        self.buffers = [None if i is None else buffers[i] for i in rest.sources]
        self.numbers = [numbers[i] for i in rest.numbers]
        relabel(self.values, before, self.epoch)
        relabel(taken, before, trace.epoch)
        return trace, computed

    def _lose(self, error: BaseException) -> None:
        """Give up the pending trace: it depends on a program that failed, and fails with the same error."""
        with self.lock:
            state = self.state.parent if isinstance(self.state, Ended) else self.state
            trace = self._trace(state)
            self._begin()
        self.lose_trace(trace, error)
