"""Where a trace's run-time numbers come from, so that a captured call can compute them without its Python.

Each number of each recorded call has candidates: the constant that it was, and, when an optimizer's step() recorded it,
every formula of that optimizer that gives the same bits. Calls with the same trace narrow them down. A replay takes a
number when all candidates that are left agree on it; when they do not, as at the first new learning rate, the call is
recorded once more, which decides. A number without candidates makes capture refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lazytpu.frontend.device.generators import TpuGenerator
from lazytpu.replay.formulas import advanced, common, of_step
from lazytpu.replay.reach import Reach
from lazytpu.replay.recording import OptimizerStep
from lazytpu.replay.refusal import Refused, where
from lazytpu.trace.trie import Record, State

Candidate = tuple[Any, ...]  # ("is", type, repr) or (step, group, first parameter, formula)
At = tuple[int, int, int]  # (step, group, first parameter)
Values = dict[At, dict[str, Any]]  # the value of each formula there


@dataclass(slots=True)
class Clock:
    """Parameters of one group whose states on the host are equal: `views` are the memory of those by key, `values`
    what they hold, `first` the index of the first parameter in the group."""

    optimizer: torch.optim.Optimizer
    group: int
    first: int
    values: dict[str, float]
    views: dict[str, list[np.ndarray[Any, Any]]]

    def untouched(self) -> bool:
        """Whether the states are what the last call left."""
        return all({view.item() for view in views} == {self.values[key]} for key, views in self.views.items())

    def set(self, values: dict[str, float]) -> None:
        """Write the states: 40 numbers cost 1.3 us through numpy, and 25 by torch._foreach_add_."""
        self.values = values
        for key, views in self.views.items():
            value = values[key]
            for view in views:
                view[()] = value


def read_states(reach: Reach) -> dict[tuple[int, str], float]:
    """The optimizers' states on the host, by (id of a parameter's states, key)."""
    return {(id(states), key): tensor.item() for _, states, key, tensor in reach.host_states}


def clocks(reach: Reach, before: dict[tuple[int, str], float], steps: list[OptimizerStep]) -> list[Clock]:
    """The parameters that the call's steps of optimizers advanced, by group and state before it; all others were left
    alone.

    Raises Refused when a state changed in a way that is not known.
    """
    found: list[Clock] = []
    views = {(id(states), key): tensor.detach().numpy() for _, states, key, tensor in reach.host_states}
    for optimizer in reach.optimizers:
        hypers = [each.hypers for each in steps if each.optimizer is optimizer]
        for number, group in enumerate(optimizer.param_groups):
            made: dict[tuple[Any, ...], Clock] = {}
            for index, parameter in enumerate(group["params"]):
                states = optimizer.state.get(parameter, {})
                keys = [key for key in states if (id(states), key) in views]
                old = {key: before[id(states), key] for key in keys if (id(states), key) in before}
                new = {key: views[id(states), key].item() for key in keys}
                expected = old
                for each in hypers:
                    expected = advanced(optimizer, each[number], expected)
                if new == old and keys and hypers:
                    continue  # it has no gradient, and is no part of the step
                if new != expected:
                    raise Refused(f"{type(optimizer).__name__} changes a state on the host by a rule that is not known")
                if not hypers:
                    continue
                clock = made.setdefault(tuple(old.items()), Clock(optimizer, number, index, old, {k: [] for k in keys}))
                for key in keys:
                    clock.views[key].append(views[id(states), key])
            found.extend(made.values())
    return found


class Environment:
    """The formulas' values for one call: those that its optimizers' steps compute from hyperparameters and states."""

    def __init__(self, steps: list[torch.optim.Optimizer], clocks: list[Clock]):
        self.steps = steps
        self.clocks = clocks
        self._kept: dict[At, tuple[dict[str, Any], dict[str, Any]]] = {}

    def evaluate(self, hypers: list[list[dict[str, Any]]]) -> tuple[Values, list[dict[str, float]]]:
        """(the formulas' values, each clock's states after the call), with `hypers` at each step."""
        found: Values = {}
        now = [clock.values for clock in self.clocks]
        for number, optimizer in enumerate(self.steps):
            for i, clock in enumerate(self.clocks):
                if clock.optimizer is optimizer:
                    mine = hypers[number][clock.group]
                    now[i] = advanced(optimizer, mine, now[i])
                    at = number, clock.group, clock.first
                    found[at] = self._formulas(at, optimizer, mine, now[i])
        return found, now

    def _formulas(self, at: At, optimizer: torch.optim.Optimizer, hypers: dict[str, Any], state: Any) -> dict[str, Any]:
        """The formulas of hyperparameters alone are kept while these are the same."""
        known, kept = self._kept.get(at, (None, {}))
        if known != hypers:
            kept = common(hypers)
            self._kept[at] = hypers, kept
        return {**kept, **of_step(optimizer, hypers, state)}


def exact(value: Any) -> tuple[Any, ...]:
    """A number by its bits."""
    return type(value), repr(value)


def number_records(state: State) -> Iterator[tuple[range, Record]]:
    """Which run-time numbers each record of a trace has."""
    found: list[tuple[range, Record]] = []
    at: State | None = state
    while at is not None and at.parent is not None:
        if at.record is not None and at.numbers > at.parent.numbers:
            found.append((range(at.parent.numbers, at.numbers), at.record))
        at = at.parent
    return reversed(found)


def draws(state: State, numbers: list[Any], before: dict[TpuGenerator, tuple[int, int]]) -> dict[int, Candidate]:
    """For the numbers of random ops: the generator and, of offsets, how far it was from where the call began.

    Raises Refused for a random op whose generator the call does not reach.
    """
    found: dict[int, Candidate] = {}
    for _, record in number_records(state):
        if record.rng is None:
            continue
        seed, offset = numbers[record.rng], numbers[record.rng + 1]
        mine = [g for g, (s, start) in before.items() if s == seed and start <= offset <= g.get_offset()]
        if len(mine) != 1:
            raise Refused(f"{where(record)} draws from a generator that is seeded in the call, or hidden")
        found[record.rng] = ("seed", mine[0])
        found[record.rng + 1] = ("offset", mine[0], offset - before[mine[0]][1])
    return found


def candidates(
    numbers: list[Any],
    drawn: dict[int, Candidate],
    steps: list[OptimizerStep],
    values: Values,
    constants: set[int],
) -> list[frozenset[Candidate]]:
    """What each number of a recorded call may be; `constants` are only what they were."""
    found: list[frozenset[Candidate]] = []
    by_value: list[tuple[range, dict[tuple[Any, ...], list[Candidate]]]] = []
    for i, step in enumerate(steps):
        named: dict[tuple[Any, ...], list[Candidate]] = {}
        for (number, group, first), formula in values.items():
            if number == i:
                for name, value in formula.items():
                    if not name.startswith("="):
                        named.setdefault(exact(value), []).append((number, group, first, name))
        by_value.append((step.numbers, named))
    for index, value in enumerate(numbers):
        if index in drawn:
            found.append(frozenset({drawn[index]}))
            continue
        bits = exact(value)
        given: list[Candidate] = [("is", *bits)]
        for where_, named in by_value:
            if index in where_ and index not in constants:
                given.extend(named.get(bits, ()))
        found.append(frozenset(given))
    return found


def regimes(values: Values) -> tuple[Any, ...]:
    """What decides about the ops that the optimizers record, and is therefore the same in all calls of a capture."""
    return tuple(
        (at, name, value) for at, formula in values.items() for name, value in formula.items() if name[0] == "="
    )


class Plan:
    """Computes the numbers of a captured call."""

    def __init__(self, last: list[Any], explained: list[frozenset[Candidate]], environment: Environment):
        self.base = list(last)
        self.environment = environment
        self.seeds: list[tuple[int, TpuGenerator]] = []
        self.offsets: list[tuple[int, TpuGenerator, int]] = []
        shared: dict[frozenset[Candidate], list[int]] = {}
        for index, given in enumerate(explained):
            first = next(iter(given))
            if first[0] == "seed":
                self.seeds.append((index, first[1]))
            elif first[0] == "offset":
                self.offsets.append((index, first[1], first[2]))
            elif len(given) > 1 or first[0] != "is":
                shared.setdefault(given, []).append(index)
        self.formulas = [(_formulas(given), has_constant(given), indices) for given, indices in shared.items()]
        self.constant = not (self.seeds or self.offsets or self.formulas)

    def fill(self, values: Values) -> list[Any] | None:
        """The numbers of the next call; None when candidates disagree about one."""
        numbers = self.base.copy()
        for index, generator in self.seeds:
            numbers[index] = generator.initial_seed()
        for index, generator, distance in self.offsets:
            numbers[index] = generator.get_offset() + distance
        for named, constant, indices in self.formulas:
            (at, name), *others = named
            value = values[at][name]
            for at, name in others:
                if values[at][name] != value:
                    return None
            if constant and numbers[indices[0]] != value:
                return None
            for index in indices:
                numbers[index] = value
        return numbers


def _formulas(given: frozenset[Candidate]) -> list[tuple[At, str]]:
    return sorted((c[:3], c[3]) for c in given if c[0] != "is")  # pyright: ignore[reportReturnType]


def has_constant(given: frozenset[Candidate]) -> bool:
    """Whether a number may be a constant."""
    return any(c[0] == "is" for c in given)
