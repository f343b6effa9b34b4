"""A call as it is recorded: one trace of its own, and what happened beside it."""

from __future__ import annotations

import random
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
from lazytpu.trace.recorder import Recorder, Trace
from lazytpu.trace.trie import State
from lazytpu.trace.value import Value


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """A call of optimizer.step(): which of the trace's numbers it recorded, and the hyperparameters it saw."""

    optimizer: torch.optim.Optimizer
    numbers: range
    hypers: list[dict[str, Any]]


@dataclass(slots=True)
class Recorded:
    """What a recorded call left: its trace, the slots alive at its end and the inputs dead then; `known` says for the
    slot of each input in which places it was found; `problem` is the first reason why it is not one program."""

    trace: Trace | None = None
    live: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()
    known: dict[int, tuple[Key, ...]] = field(default_factory=dict)
    steps: list[OptimizerStep] = field(default_factory=list)
    problem: str | None = None


class CallRecorder(Recorder):
    """Records one call. Nothing ends its trace but the end of the call, and a host read, which is noted."""

    __slots__ = ("_finishing", "_places", "recorded")

    def __init__(self, root: State, outer: Recorder, places: dict[int, tuple[Any, tuple[Key, ...]]]):
        self.recorded = Recorded()
        self._places = places
        self._finishing = False
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

    def reading(self) -> None:
        """A value goes to the host: what the call does next may depend on it."""
        if not self._finishing:
            self.note(f"it reads a value on the host ({user_line()})")

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
