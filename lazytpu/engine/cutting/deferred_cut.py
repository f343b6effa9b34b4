"""A cut that waits to be launched: its deferred values, and what becomes of them when it fails.

Until somebody is told of a failure, all that depends on the cut raises it. Whoever is told goes on from where the last
cut that did not fail has left off: what was overwritten since then has its old contents again, as after a cut that
fails at once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Container, Sequence
from math import inf
from typing import Any

from lazytpu.engine.cutting.agreement import Turn
from lazytpu.engine.cutting.cut import Cut
from lazytpu.engine.cutting.launcher import Launcher
from lazytpu.engine.cutting.strategies import Strategy
from lazytpu.engine.errors.cuts import drop_frames, explain
from lazytpu.engine.errors.lineage import DeviceError
from lazytpu.engine.errors.undo import before_trace, root_of
from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.buffers.deferred import DeferredBuffer, failure_of, is_waiting
from lazytpu.trace.extract import Extracted, Slots, extract, operands
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import CutPlan, Record
from lazytpu.trace.value import EMPTY, Value, again

_telling = threading.Lock()


class LaunchFailure(DeviceError):
    """Why cuts failed: one, and those that depend on it. It is among the `errors` of the engine until it is told; cuts
    before number `until` of the `launcher`, which had been cut by then, are part of it all the same."""

    __slots__ = ("_before", "_errors", "_launcher", "_values", "reason", "until")

    def __init__(self, error: BaseException, run: int, errors: list[DeviceError], launcher: Launcher):
        super().__init__(error, run)
        self.reason = error
        self.until: float = inf
        self._launcher = launcher
        self._errors = errors
        self._before: dict[DeferredBuffer, Any] = {}
        self._values: list[DeferredValue] = []

    def add(self, values: Sequence[DeferredValue], before: Sequence[Any]) -> None:
        """So many more results are lost. What they overwrote was in the buffers `before`, None for nothing."""
        with _telling:
            for value, old in zip(values, before, strict=True):
                if old is not None:
                    self._before[value.deferred] = old
                self._values.append(value)
                value.deferred.fail(self)
            if self.error is None:
                self._give_back()

    def before(self, buffer: DeferredBuffer) -> Any:
        """The buffer with what a lost one overwrote, or None."""
        return self._before.get(buffer)

    def told(self) -> BaseException:
        """As `Failure` says: the error, to be raised."""
        self.tell()
        return again(self.reason)

    def tell(self) -> None:
        """Somebody is told."""
        with _telling:
            if self.error is not None:
                self.error, self.until = None, self._launcher.count
                self._give_back()
                if self in self._errors:
                    self._errors.remove(self)

    def _give_back(self) -> None:
        """What was overwritten has its old contents again."""
        for each in self._values:
            value, old = each.value(), self._before.get(each.deferred)
            if value is not None and value.buffer is each.deferred and old is not None:
                value.buffer = old
                if old is not EMPTY:
                    old.pins += 1  # other values may share it (R5)
        self._values.clear()


class DeferredValue:
    """A live value of a cut that waits. Its `buffer` is None until it is set, by the launch or ahead of it, once; it is
    then among the `buffers` of the cut."""

    __slots__ = ("buffers", "deferred", "launcher", "slot", "value")

    def __init__(self, value: Value, slot: int, launcher: Launcher, buffers: dict[int, Any]):
        self.value = weakref.ref(value)
        self.slot = slot
        self.launcher = launcher
        self.buffers = buffers
        self.deferred = value.buffer = DeferredBuffer(launcher)

    @property
    def buffer(self) -> Any:
        return None if is_waiting(self.deferred) else self.deferred

    @buffer.setter
    def buffer(self, made: Buffer) -> None:
        if is_waiting(self.deferred):
            self.buffers[self.slot] = self.deferred  # first: the script may overwrite it as soon as it is kept
            self.deferred.keep(made)
            self.launcher.notify()
        else:
            made.release()


class DeferredCut:
    """A cut that waits: its `strategy` will give the live values their buffers. `buffers` are those of its inputs, and
    of what was computed of it and is still needed, by slot. Its collectives have `turns`.

    `failed` gives the failure that a cut is part of when it has failed. `compute` launches the part of a trace that
    computes a slot, on the buffers by slot of its inputs, and gives None where that fails."""

    def __init__(
        self,
        failed: Callable[[DeferredCut, Any], LaunchFailure],
        compute: Callable[[Trace, int, Extracted, dict[int, Any]], Buffer | None],
        launcher: Launcher,
        strategy: Strategy,
        cut: Cut,
        turns: Sequence[Turn] = (),
    ):
        self.failed = failed
        self.compute = compute
        self.launcher = launcher
        self.strategy = strategy
        self.buffers = cut.inputs()
        # Nothing here may keep a value alive: what is dead at a later cut would depend on when this is launched (R4).
        self.values = [DeferredValue(value, slot, launcher, self.buffers) for slot, value in cut.held]
        self.cut = cut.behind([(value.slot, value) for value in self.values], self.buffers)
        self.turns = turns
        self.number = launcher.count
        self._only_in_turn: set[DeferredBuffer] = set()  # what could not be launched ahead

    @property
    def trace(self) -> Trace:
        """Its trace, without the values."""
        return self.cut.trace

    def inputs(self) -> Sequence[Any]:
        """As `Launch` says."""
        return list(self.buffers.values())

    def is_awaited(self) -> bool:
        """As `Launch` says."""
        return all(turn.is_awaited() for turn in self.turns)

    def makes(self, buffer: DeferredBuffer) -> bool:
        """As `Launch` says."""
        return any(value.deferred is buffer for value in self.values)

    def launch_ahead(self, buffer: DeferredBuffer, before: Callable[[DeferredBuffer], None]) -> None:
        """As `Launch` says."""
        value = next(each for each in self.values if each.deferred is buffer)
        if buffer in self._only_in_turn:
            return
        part = _part_for(self.cut.plan, self.trace.state.records(), value.slot, self.buffers)
        if part is None:
            return
        inputs = {slot: self.buffers[slot] for slot in part.inputs}
        for each in inputs.values():
            if is_waiting(each):
                before(each)
        if any(is_waiting(each) or each.gone() for each in inputs.values()):
            return
        made = self.compute(self.trace, value.slot, part, inputs)
        if made is None:
            self._only_in_turn.add(buffer)
        else:
            value.buffer = made

    def run(self) -> None:
        """As `Launch` says."""
        try:
            reason = lost_input(self.trace.buffers)
            if reason is None:
                following: Strategy | None = self.strategy
                while following is not None:
                    following = following.run(self.cut)
                return
        except BaseException as error:  # noqa: BLE001  (it is raised where somebody needs a result, or at the end)
            reason = error
        self._fail(reason)

    def _fail(self, reason: Any) -> None:
        """What is not computed yet never is: for that `reason`, an error or the LaunchFailure of an input."""
        failure = self.failed(self, reason)
        contents, predecessors = before_trace(self.trace)
        lost = [value for value in self.values if value.buffer is None]
        failure.add(lost, [_there(contents.get(root_of(value.slot, predecessors))) for value in lost])
        self.buffers.clear()  # the failure holds the values
        self.launcher.notify()

    def explained(self, error: BaseException, full: Callable[[Any], BaseException]) -> BaseException:
        """The error to raise for a launch that failed; `full` makes that of one that needed too much memory. Inputs
        whose memory it has taken are lost with it."""
        taken = [buffer for buffer in self.trace.buffers if buffer.taken()]
        for buffer in taken:
            buffer.release()
        lost = any(value.buffer is None for value in self.values)
        try:
            explained = again(explain(error, self.trace.state, lost, len(taken), full))
        except Exception as another:  # noqa: BLE001  (a report of memory, say, of what the script is just changing)
            explained = again(error)
            explained.add_note(f"There is no more to say of it: {type(another).__name__}: {another}")
        drop_frames(error)
        for buffer in taken:
            buffer.error = again(explained)
        return explained


def _part_for(plan: CutPlan, records: Sequence[Record], slot: int, there: Container[int]) -> Extracted | None:
    """The part of a trace that computes a slot, when other slots are `there`. None if that takes a collective."""
    known = Slots(records)
    needed: set[int] = set()
    pending = [slot]
    while pending:
        at = pending.pop()
        maker = None if at in there else known.makers.get(at)
        if maker is None or maker in needed:
            continue
        record = records[maker]
        if record.collective:
            return None
        needed.add(maker)
        pending.extend([each.slot for argument in record.arguments.values() for each in operands(argument)])
    chosen = tuple(sorted(needed))
    if chosen not in plan.ahead:  # the state of a part has its program
        plan.ahead[chosen] = extract(records, chosen, known)
    return plan.ahead[chosen]


def lost_input(buffers: Sequence[Any]) -> Any:
    """The LaunchFailure of the first of some buffers that has one, or None."""
    return next((failure for buffer in buffers if (failure := failure_of(buffer)) is not None), None)


def _there(old: Any) -> Any:
    """The buffer with the contents of `old`. Where that is a deferred one that failed, what it overwrote; None if that
    is gone."""
    while (failure := failure_of(old)) is not None:
        old = failure.before(old)
    return None if old is None or (old is not EMPTY and old.gone()) else old


def with_old_contents(buffers: list[Any]) -> None:
    """Give a trace that is given up what was there before failed cuts, in place of their deferred values."""
    for i, buffer in enumerate(buffers):
        if failure_of(buffer) is not None:
            buffers[i] = old = _there(buffer)
            if old is not None and old is not EMPTY:
                old.pins += buffer.pins
