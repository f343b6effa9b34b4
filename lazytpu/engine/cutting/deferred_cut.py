"""A cut that waits to be launched: its deferred values, and their state after a failure.

Until a failure is reported, everything that depends on the cut raises it. Afterwards the script continues from the last
cut that succeeded: overwritten values have their old contents again, as after a cut that fails immediately.
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
from lazytpu.trace.pending import Trace
from lazytpu.trace.trie import CutPlan, Record
from lazytpu.trace.value import EMPTY, Value, again

_telling = threading.Lock()


class LaunchFailure(DeviceError):
    """The failure of a cut and of all cuts that depend on it.

    It is among the `errors` of the engine until it is reported. Cuts before number `until` of the `launcher` had been
    made by then, and belong to the failure as well.
    """

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
        """Add results that are lost. `before` has the buffers of the contents they overwrote, None if they overwrote
        none."""
        with _telling:
            for value, old in zip(values, before, strict=True):
                if old is not None:
                    self._before[value.deferred] = old
                self._values.append(value)
                value.deferred.fail(self)
            if self.error is None:
                self._give_back()

    def before(self, buffer: DeferredBuffer) -> Any:
        """Return the buffer with the contents that a lost buffer overwrote, or None."""
        return self._before.get(buffer)

    def told(self) -> BaseException:
        """Report the failure and return the error to raise, as `Failure` specifies."""
        self.tell()
        return again(self.reason)

    def tell(self) -> None:
        """Mark the failure as reported and restore overwritten contents."""
        with _telling:
            if self.error is not None:
                self.error, self.until = None, self._launcher.count
                self._give_back()
                if self in self._errors:
                    self._errors.remove(self)

    def _give_back(self) -> None:
        """Give values that were overwritten their old buffers."""
        for lost_value in self._values:
            value, old = lost_value.value(), self._before.get(lost_value.deferred)
            if value is not None and value.buffer is lost_value.deferred and old is not None:
                value.buffer = old
                if old is not EMPTY:
                    old.pins += 1  # other values may share it (R5)
        self._values.clear()


class DeferredValue:
    """A live value of a deferred cut.

    Its `buffer` is None until it is set, once: by the launch of the cut, or ahead of it. It is then among the `buffers`
    of the cut.
    """

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
            self.buffers[self.slot] = self.deferred  # before `keep`, after which the script may overwrite it
            self.deferred.keep(made)
            self.launcher.notify()
        else:
            made.release()


class DeferredCut:
    """A cut that waits for its launch. Its `strategy` sets the buffers of the live values.

    `buffers` has, by slot, the inputs and those computed values that are still needed. `turns` are the tickets of its
    collectives. `failed` returns the failure that the cut belongs to. `compute` launches the part of a trace that
    computes a slot and returns its buffer, or None on failure.
    """

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
        # Keep no value alive here: the dead inputs of a later cut would depend on the time of this launch (R4).
        self.values = [DeferredValue(value, slot, launcher, self.buffers) for slot, value in cut.held]
        self.cut = cut.behind([(value.slot, value) for value in self.values], self.buffers)
        self.turns = turns
        self.number = launcher.count
        self._only_in_turn: set[DeferredBuffer] = set()  # buffers that could not be launched ahead

    @property
    def trace(self) -> Trace:
        """Return its trace, without the values."""
        return self.cut.trace

    def inputs(self) -> Sequence[Any]:
        """See `Launch.inputs`."""
        return list(self.buffers.values())

    def is_awaited(self) -> bool:
        """See `Launch.is_awaited`."""
        return all(turn.is_awaited() for turn in self.turns)

    def makes(self, buffer: DeferredBuffer) -> bool:
        """See `Launch.makes`."""
        return any(value.deferred is buffer for value in self.values)

    def launch_ahead(self, buffer: DeferredBuffer, before: Callable[[DeferredBuffer], None]) -> None:
        """See `Launch.launch_ahead`."""
        value = next(item for item in self.values if item.deferred is buffer)
        if buffer in self._only_in_turn:
            return
        part = _part_for(self.cut.plan, self.trace.state.records(), value.slot, self.buffers)
        if part is None:
            return
        inputs = {slot: self.buffers[slot] for slot in part.inputs}
        for item in inputs.values():
            if is_waiting(item):
                before(item)
        if any(is_waiting(item) or item.gone() for item in inputs.values()):
            return
        buffer_ahead = self.compute(self.trace, value.slot, part, inputs)
        if buffer_ahead is None:
            self._only_in_turn.add(buffer)
        else:
            value.buffer = buffer_ahead

    def run(self) -> None:
        """See `Launch.run`."""
        try:
            reason = lost_input(self.trace.buffers)
            if reason is None:
                following: Strategy | None = self.strategy
                while following is not None:
                    following = following.run(self.cut)
                return
        except BaseException as error:  # noqa: BLE001  (it is raised where a result is needed, or at the end)
            reason = error
        self._fail(reason)

    def _fail(self, reason: Any) -> None:
        """Poison the values that are not computed yet. `reason` is an error, or the LaunchFailure of an input."""
        failure = self.failed(self, reason)
        contents, predecessors = before_trace(self.trace)
        lost_values = [value for value in self.values if value.buffer is None]
        failure.add(lost_values, [_there(contents.get(root_of(value.slot, predecessors))) for value in lost_values])
        self.buffers.clear()  # the failure holds the values
        self.launcher.notify()

    def explained(self, error: BaseException, full: Callable[[Any], BaseException]) -> BaseException:
        """Return the error to raise for a failed launch; `full` constructs an out-of-memory error.

        Donated inputs are released, and reading them raises this error.
        """
        taken = [buffer for buffer in self.trace.buffers if buffer.taken()]
        for buffer in taken:
            buffer.release()
        lost = any(value.buffer is None for value in self.values)
        try:
            explained = again(explain(error, self.trace.state, lost, len(taken), full))
        except Exception as another:  # noqa: BLE001  (such as a memory report on objects that the script is changing)
            explained = again(error)
            explained.add_note(f"There is no more to say of it: {type(another).__name__}: {another}")
        drop_frames(error)
        for buffer in taken:
            buffer.error = again(explained)
        return explained


def _part_for(plan: CutPlan, records: Sequence[Record], slot: int, there: Container[int]) -> Extracted | None:
    """Return the part of a trace that computes `slot` if the slots in `there` are available; None if that needs a
    collective."""
    slots = Slots(records)
    needed: set[int] = set()
    pending = [slot]
    while pending:
        at = pending.pop()
        maker = None if at in there else slots.makers.get(at)
        if maker is None or maker in needed:
            continue
        record = records[maker]
        if record.collective:
            return None
        needed.add(maker)
        pending.extend([operand.slot for argument in record.arguments.values() for operand in operands(argument)])
    chosen = tuple(sorted(needed))
    if chosen not in plan.ahead:  # the state of the part keeps its program
        plan.ahead[chosen] = extract(records, chosen, slots)
    return plan.ahead[chosen]


def lost_input(buffers: Sequence[Any]) -> Any:
    """Return the LaunchFailure of the first failed buffer, or None."""
    return next((failure for buffer in buffers if (failure := failure_of(buffer)) is not None), None)


def _there(old: Any) -> Any:
    """Return the buffer with the contents of `old`.

    For a failed deferred buffer these are the contents that it overwrote. Return None if they no longer exist.
    """
    while (failure := failure_of(old)) is not None:
        old = failure.before(old)
    return None if old is None or (old is not EMPTY and old.gone()) else old


def with_old_contents(buffers: list[Any]) -> None:
    """Replace the failed deferred buffers of an abandoned trace by the buffers they would have overwritten."""
    for i, buffer in enumerate(buffers):
        if failure_of(buffer) is not None:
            buffers[i] = old = _there(buffer)
            if old is not None and old is not EMPTY:
                old.pins += buffer.pins
