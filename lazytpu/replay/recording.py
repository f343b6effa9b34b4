"""A call as it is recorded: one trace of its own, and what happened beside it."""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from lazytpu.frontend.lines import user_line
from lazytpu.frontend.tensors import STASH
from lazytpu.frontend.torch_private import is_stashed, stash_in_thread, thread_stash
from lazytpu.replay.reach import Key, is_hyper
from lazytpu.trace.cuts import MARK
from lazytpu.trace.extract import Slots, closure, extract
from lazytpu.trace.reads import Held
from lazytpu.trace.recorder import Recorder, Trace
from lazytpu.trace.trie import State
from lazytpu.trace.value import Value, resident


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """A call of optimizer.step(): which of the trace's numbers it recorded, and the hyperparameters it saw."""

    optimizer: torch.optim.Optimizer
    numbers: range
    hypers: list[dict[str, Any]]


@dataclass(slots=True)
class Recorded:
    """What a recorded call left: its trace, the slots alive at its end and the inputs dead then; `known` says for the
    slot of each input in which places it was found; `problem` is the first reason why it is not one program.
    `constants` are the numbers that decided about a value that was read: the same in all calls of a capture."""

    trace: Trace | None = None
    live: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()
    known: dict[int, tuple[Key, ...]] = field(default_factory=dict)
    steps: list[OptimizerStep] = field(default_factory=list)
    problem: str | None = None
    constants: set[int] = field(default_factory=set)


class CallRecorder(Recorder):
    """Records one call. Nothing ends its trace but the end of the call, and a host read, which is noted.

    A read of a value that depends on nothing but the code (transformers looks at positions it made itself, to find out
    whether sequences are packed) is computed beside the trace: it is the same in each call with the same records.
    """

    __slots__ = ("_beside", "_finishing", "_places", "_read", "recorded")

    def __init__(self, root: State, outer: Recorder, places: dict[int, tuple[Any, tuple[Key, ...]]]):
        self.recorded = Recorded()
        self._places = places
        self._finishing = False
        self._beside = outer.cut_trace
        self._read: set[int] = set()  # slots of values that were read and are constant
        super().__init__(root, self._observed(outer.cut_trace, outer.mode), outer.plan_of)
        self.own_mode = "lazy"
        self._set_mode("lazy")

    def _observed(self, cut_trace: Callable[[Trace], None], mode: str) -> Callable[[Trace], None]:
        found = self.recorded

        def cut(trace: Trace) -> None:
            found.live = frozenset(slot for slot, value in enumerate(trace.values) if value() is not None)
            slots = input_slots(trace.state)
            found.dead = frozenset(i for i, s in enumerate(slots) if s not in found.live and trace.buffers[i].pins == 1)
            found.trace = trace
            cut_trace(replace(trace, mode=mode))

        return cut

    def admit(self, value: Value) -> tuple[Any, ...]:
        key = super().admit(value)
        reference, places = self._places.get(id(value), (None, ()))
        self.recorded.known[value.slot] = places if reference is not None and reference() is value else ()
        return key

    def note(self, problem: str) -> None:
        """The call is not one program; the first reason counts."""
        if self.recorded.problem is None:
            self.recorded.problem = problem

    def reading(self, value: Value) -> None:
        """A value goes to the host: what the call does next may depend on it."""
        if self._finishing or self._is_constant(value):
            return
        self.note(f"it reads a value on the host ({user_line()})")

    def read(self, value: Value, place: Any = None) -> None:
        self.reading(value)
        super().read(value, place)

    def _is_constant(self, value: Value) -> bool:
        """Whether a value of this trace depends on no input and no random number; it has its buffer then."""
        with self.cut_lock, self.lock:
            if value.recorder is not self or value.epoch != self.epoch:
                return False
            if value.slot in self._read:
                return True
            records = self.state.records()
            known = Slots(records)
            maker = known.makers.get(value.slot)
            if maker is None:
                return False
            chosen = closure(records, {maker}, known)
            part = extract(records, sorted(chosen), known)
            of_inputs = [s for i in chosen for s, _, _ in records[i].admitted if s in known.inputs or self._found(s)]
            if of_inputs or any(records[i].rng is not None for i in chosen):
                return False
            made = resident(value.layout, None)
            values: list[Callable[[], Value | None]] = [_nothing] * len(part.origins)
            values[part.slots[value.slot]] = Held(made)
            numbers = [self.numbers[i] for i in part.numbers]
            self._beside(Trace(part.state, -1, [], numbers, values, time.perf_counter()))
            value.buffer = made.buffer
            self._read.add(value.slot)
            self.recorded.constants.update(part.numbers)
            return True

    def _found(self, slot: int) -> bool:
        """Whether a value was there before the call."""
        return bool(self.recorded.known.get(slot))

    def end(self, place: Any = None) -> None:
        """optimizer.step() ends no trace here: the call does."""

    def cut(self, cause: str | None = None, place: Any = None) -> None:
        if cause is MARK:  # nor does mark_step()
            return
        if not self._finishing and self.state is not self.root:
            self.note(f"its trace is cut before it ends: {cause} ({place or user_line()})")
        super().cut(cause, place)

    def finish(self) -> None:
        """Run what the call recorded, if it was not cut before."""
        self._finishing = True
        super().cut()


def _nothing() -> None:
    """In place of references to values that a part of a trace need not compute."""


def input_slots(state: State) -> list[int]:
    """The slots of a trace's inputs that have a buffer, in the order of its buffers."""
    return [slot for record in state.records() for slot, _, empty in record.admitted if not empty]


def places_by_value(tensors: dict[Key, torch.Tensor]) -> dict[int, tuple[Any, tuple[Key, ...]]]:
    """For the value of each tensor, by id: a weak reference to it and the places it is found in, one for each storage.

    Values are held weakly, since what is alive at the end of the call decides what its program computes (R4).
    """
    found: dict[int, tuple[Any, tuple[Key, ...]]] = {}
    storages: set[int] = set()
    for place, tensor in tensors.items():
        storage: Any = tensor.untyped_storage()
        if id(storage) in storages:
            continue
        storages.add(id(storage))
        value = storage._value
        reference, places = found.get(id(value), (None, ()))
        found[id(value)] = (reference or weakref.ref(value), (*places, place))
    return found


@contextmanager
def recording(recorder: CallRecorder) -> Iterator[None]:
    """What this thread does inside, and autograd for it, goes to `recorder`."""
    before = thread_stash(STASH)
    starts: dict[int, tuple[int, list[dict[str, Any]]]] = {}

    def mine() -> bool:
        return is_stashed(STASH) and thread_stash(STASH) is recorder

    def begins(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if mine():
            starts[id(optimizer)] = recorder.state.numbers, hypers_of(optimizer)

    def ends(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if mine() and id(optimizer) in starts:
            start, hypers = starts.pop(id(optimizer))
            numbers = range(start, recorder.state.numbers)
            recorder.recorded.steps.append(OptimizerStep(optimizer, numbers, hypers))

    hooks = register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)
    host = host_draws()
    stash_in_thread(STASH, recorder)
    try:
        yield
    finally:
        stash_in_thread(STASH, before)
        for hook in hooks:
            hook.remove()
    if host_draws() != host:
        recorder.note("it draws random numbers on the CPU")


def hypers_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The numbers in each parameter group."""
    return [{k: v for k, v in group.items() if is_hyper(v)} for group in optimizer.param_groups]


def host_draws() -> tuple[Any, ...]:
    """What changes when random numbers are drawn on the host by torch, Python or numpy."""
    legacy: Any = np.random.get_state(legacy=True)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), legacy[1].tobytes(), *legacy[2:]
