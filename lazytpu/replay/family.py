"""Recorded calls that did the same, and what they have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from lazytpu.frontend.device.generators import TpuGenerator
from lazytpu.replay.numbers import Candidate, Clock, number_records
from lazytpu.replay.reach import Key
from lazytpu.replay.recording import OptimizerStep
from lazytpu.replay.refusal import Refused, where
from lazytpu.replay.results import Write
from lazytpu.trace.trie import State
from lazytpu.trace.value import Layout


@dataclass(slots=True)
class Seen:
    """What one recorded call did. It holds no tensor and no value.

    `pins` are the plain Python values reached before the call and which gradients were None; `regimes` what decides
    about the ops of optimizers: calls are equal only if these are, too. `explained` are the candidates of each number,
    `inputs` the places of each input of the trace. `layouts` and `metas` describe the tensors in places before the
    call, `slot_layouts` the values it left; `ungraded` says by parameter whether it had no gradient before the call.
    """

    state: State
    pins: frozenset[Any]
    regimes: tuple[Any, ...]
    numbers: list[Any]
    explained: list[frozenset[Candidate]]
    inputs: list[frozenset[Key]]
    input_slots: list[int]
    live: frozenset[int]
    dead: frozenset[int]
    writes: list[Write]
    leaves: tuple[Any, ...]
    structure: Any
    hypers: list[list[dict[str, Any]]]
    steps: list[OptimizerStep]
    clocks: list[Clock]
    draws: dict[TpuGenerator, int]
    schedulers: list[LRScheduler]
    layouts: dict[Key, Layout]
    slot_layouts: dict[int, Layout]
    metas: dict[Key, tuple[Any, ...]]
    containers: dict[Key, tuple[Any, Any]]
    ungraded: dict[int, bool]

    def key(self) -> tuple[Any, ...]:
        """Equal for calls that one capture may stand for."""
        return self.state, self.pins, self.regimes, tuple(self.writes), self.leaves, str(self.structure)


@dataclass(slots=True)
class Family:
    """Calls of one key: how many, and what holds for all of them.

    `varied` are the hyperparameters that were seen with different values, by (step, group, name): numbers that stayed
    the same meanwhile do not depend on them.
    """

    first: Seen
    count: int = 0
    explained: list[frozenset[Candidate]] = field(default_factory=list)
    inputs: list[frozenset[Key]] = field(default_factory=list)
    dead: frozenset[int] = frozenset()
    varied: set[tuple[int, int, str]] = field(default_factory=set)

    def add(self, seen: Seen) -> None:
        """One more call. Raises Refused when what is common to all calls does not suffice to replay one."""
        self.count += 1
        if self.count == 1:
            self.explained, self.inputs, self.dead = seen.explained, seen.inputs, seen.dead
        else:
            self.explained = [a & b for a, b in zip(self.explained, seen.explained, strict=True)]
            self.inputs = [a & b for a, b in zip(self.inputs, seen.inputs, strict=True)]
            self.dead &= seen.dead
        for step, (groups, before) in enumerate(zip(seen.hypers, self.first.hypers)):
            for group, (a, b) in enumerate(zip(groups, before)):
                self.varied.update((step, group, name) for name in a if a[name] != b.get(name))
        self.check()

    def check(self) -> None:
        """Raise Refused for a number or an input that has no explanation."""
        for index, found in enumerate(self.inputs):
            if not found:
                raise Refused(f"{where(admitting(self.first.state, index))} reads another tensor at each call; pass it")
        for numbers, record in number_records(self.first.state):
            if not all(self.explained[i] for i in numbers):
                raise Refused(f"a number of {where(record)} is another at each call, and nothing says which is next")


def admitting(state: State, index: int) -> Any:
    """The record that was the first to use input `index` of a trace."""
    for record in state.records():
        inputs = sum(not empty for _, _, empty in record.admitted)
        if index < inputs:
            return record
        index -= inputs
    raise IndexError(index)


def same(a: State, b: State) -> bool:
    """Whether two states end the same trace; they are two when one of them was evicted meanwhile."""
    x: State | None = a
    y: State | None = b
    while x is not None and y is not None and x is not y:
        if x.key != y.key:
            return False
        x, y = x.parent, y.parent
    return x is y


def difference(a: Seen, b: Seen) -> str:
    """Why two calls are not equal, for people."""
    if a.state is not b.state:
        mine, other = a.state.records(), b.state.records()
        for x, y in zip(mine, other):
            if x is not y and (x.op, x.arguments, x.line) != (y.op, y.arguments, y.line):
                return f"it records {where(x)} in one call, and {where(y)} in another"
        if len(mine) != len(other):
            longer = max(mine, other, key=len)
            return f"it records {where(longer[min(len(mine), len(other))])} in some calls only"
        return "it records the same ops on tensors of other shapes, dtypes or strides"
    if a.pins != b.pins or a.regimes != b.regimes:
        return "a Python value that it reads, or which gradients are there, is different at each call"
    if a.leaves != b.leaves or str(a.structure) != str(b.structure):
        return "it returns something else at each call"
    return "it writes other tensors at each call"
