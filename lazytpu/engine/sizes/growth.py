"""Which traces were seen at three sizes, and where chains of their states begin (`chains`)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from lazytpu.engine.sizes.chains import AT_ONCE, Chain
from lazytpu.engine.sizes.edges import Reading, read
from lazytpu.engine.sizes.fitting import Varying, fit
from lazytpu.engine.sizes.unexpected import LookingFor
from lazytpu.options import options
from lazytpu.ports import Inference
from lazytpu.trace.trie import Grow, State

MOST = 256  # kinds of traces that are remembered
SKELETONS = 65_536  # of edges
SAMPLES = 6  # of one kind, the newest
NEEDED = 3  # two show what varies, and the third that the forms are no coincidence


@dataclass(eq=False)
class Kind:
    """Traces of one skeleton at the same lines: integers of some of them, their forms, and what makes states by these
    (`grow`), as children of the state with the number `begins`."""

    samples: list[np.ndarray] = field(default_factory=list[np.ndarray])
    varying: Varying | None = None
    grow: Grow | None = None
    begins: int = -1


class Growth:
    """The chains of all traces: `learn` is told where traces end."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._kinds: dict[tuple[int, ...], Kind] = {}
        self._skeletons: dict[Any, int] = {}
        self._left: dict[Any, list[Chain]] = {}
        self._lock = threading.Lock()

    def learn(self, state: State) -> None:
        """A trace has ended at `state` for the first time."""
        if options.buckets == "off" or state.sizes.grown:
            return
        with LookingFor("chains"):
            states = _plain(state)
            if states and states[-1].key is not None:
                self._learn(states)

    def _learn(self, states: Sequence[State]) -> None:
        with self._lock:
            reading = read(states)
            try:
                kind = self._kind(reading, states)
                integers = np.array(reading.integers.values, dtype=np.int64)
            except (OverflowError, TypeError):  # an integer of 64 bits without sign, or an argument without a hash
                return
            if kind.varying is not None and kind.varying.solved(integers) is not None:
                _begin_at(kind, states)  # torch did not agree here, or it begins elsewhere: modes have their own tries
                return
            if any((sample == integers).all() for sample in kind.samples):
                return
            kind.samples = [*kind.samples, integers][-SAMPLES:]
            if len(kind.samples) >= NEEDED:
                self._begin(kind, states, reading)

    def on_left(self, state: State) -> Sequence[Grow]:
        """What makes states behind `state`, where what an earlier read left of a trace ends."""
        with LookingFor("chains behind a read"):
            left = _plain(state)
            if not left or left[-1] is not state:  # the beginning alone says nothing of the slots behind it
                return ()
            with self._lock:
                if not self._left:
                    return ()
                reading = read(left)
                found = self._left.get(reading.skeletons, ())
                return tuple([partial(chain.grow_on_left, reading.integers.values) for chain in found])
        return ()

    def _kind(self, reading: Reading, states: Sequence[State]) -> Kind:
        if len(self._skeletons) > SKELETONS:
            self._skeletons.clear()
            self._kinds.clear()
        numbers, records = self._skeletons, (state.recorded[0] for state in states)
        lines = [None if record.in_backward else record.line for record in records]
        each = zip(reading.skeletons, lines, strict=True)
        key = tuple([numbers.setdefault(skeleton, len(numbers)) for skeleton in each])
        kind = self._kinds.get(key)
        if kind is None:
            while len(self._kinds) >= MOST:
                del self._kinds[next(iter(self._kinds))]
            kind = self._kinds[key] = Kind()
        return kind

    def _begin(self, kind: Kind, states: Sequence[State], reading: Reading) -> None:
        """Let chains of a kind begin where its samples part."""
        kinds = np.array(reading.integers.kinds)
        varying = fit(kind.samples, kinds)
        if varying is None:  # what came first may be another kind
            kind.samples = kind.samples[-NEEDED:]
            varying = fit(kind.samples, kinds)
        if varying is None or not varying.symbols:
            return
        left = sum(state.key is None for state in states)
        chain = Chain(states, left, reading, varying, self._inference)
        kind.varying = varying
        if not chain.segments:
            return
        if chain.of_left:
            known = self._left.setdefault(reading.skeletons[:left], [])
            known[:] = [chain, *known][:AT_ONCE]
            while len(self._left) > MOST:
                del self._left[next(iter(self._left))]
            return
        if kind.grow is not None:
            place = _place(states, kind.begins)
            rest = tuple([grow for grow in place.sizes.grows if grow is not kind.grow])
            place.sizes = replace(place.sizes, grows=rest)
        kind.grow, kind.begins = partial(chain.grow, 0, ()), chain.begins
        _begin_at(kind, states)


def _begin_at(kind: Kind, states: Sequence[State]) -> None:
    """Let the chain of a kind begin in the trace with these states."""
    place = _place(states, kind.begins)
    grows = place.sizes.grows
    if kind.grow is not None and kind.grow not in grows:
        place.sizes = replace(place.sizes, grows=(kind.grow, *grows)[:AT_ONCE])


def _place(states: Sequence[State], number: int) -> State:
    found = states[number] if number >= 0 else states[0].parent
    assert found is not None
    return found


def _plain(state: State) -> list[State]:
    """The states from the first one on, up to one that is more than a plain record. None of what a cut decides may be
    skipped."""
    path: list[State] = []
    step: State | None = state
    while step is not None and step.recorded:
        path.append(step)
        step = step.parent
    path.reverse()
    for number, each in enumerate(path):
        if len(each.recorded) != 1 or each.traits.collective:
            return path[:number]
        if each.marks.ends is not None:
            return path[: number + 1]
    return path
