"""Trace families that were observed at three sizes, and the trie states at which their chains begin (`chains`)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
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
NEEDED = 3  # two show the varying sizes, the third confirms the expressions


@dataclass(eq=False)
class Kind:
    """A family of traces: one structure, recorded at the same source lines.

    `samples` are the integers of some of them, `varying` their size expressions. `grow` adds states for other sizes as
    children of the state with the number `begins`.
    """

    samples: list[np.ndarray] = field(default_factory=list[np.ndarray])
    varying: Varying | None = None
    grow: Grow | None = None
    begins: int = -1


class Growth:
    """The chains of all trace families. `learn` takes the states at which traces end."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._kinds: dict[tuple[int, ...], Kind] = {}
        self._skeletons: dict[Any, int] = {}
        self._left: dict[Any, list[Chain]] = {}
        self._lock = threading.Lock()

    def learn(self, state: State) -> None:
        """Observe the trace that ended at `state` for the first time."""
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
            except (OverflowError, TypeError):  # an unsigned 64-bit integer, or an unhashable argument
                return
            if kind.varying is not None and kind.varying.solved(integers) is not None:
                _begin_at(kind, states)  # torch disagreed, or this is the trie of another mode
                return
            if any((sample == integers).all() for sample in kind.samples):
                return
            kind.samples = [*kind.samples, integers][-SAMPLES:]
            if len(kind.samples) >= NEEDED:
                self._begin(kind, states, reading)

    def on_left(self, state: State) -> Sequence[Grow]:
        """Return the functions that add states after `state`, at which the records end that an earlier read left
        behind."""
        with LookingFor("chains behind a read"):
            leftover = _plain(state)
            if not leftover or leftover[-1] is not state:  # a prefix does not determine the slots after it
                return ()
            with self._lock:
                if not self._left:
                    return ()
                reading = read(leftover)
                chains = self._left.get(reading.skeletons, ())
                return tuple([partial(chain.grow_on_left, reading.integers.values) for chain in chains])
        return ()

    def _kind(self, reading: Reading, states: Sequence[State]) -> Kind:
        """Return the family of the traces with these structures and lines, a new one if none is known."""
        if len(self._skeletons) > SKELETONS:
            self._skeletons.clear()
            self._kinds.clear()
        numbers, records = self._skeletons, (state.recorded[0] for state in states)
        lines = [None if record.in_backward else record.line for record in records]
        entries = zip(reading.skeletons, lines, strict=True)
        key = tuple([numbers.setdefault(skeleton, len(numbers)) for skeleton in entries])
        kind = self._kinds.get(key)
        if kind is None:
            while len(self._kinds) >= MOST:
                del self._kinds[next(iter(self._kinds))]
            kind = self._kinds[key] = Kind()
        return kind

    def _begin(self, kind: Kind, states: Sequence[State], reading: Reading) -> None:
        """Attach this family's chain to the trie state where its samples diverge."""
        kinds = np.array(reading.integers.kinds)
        varying = fit(kind.samples, kinds)
        if varying is None:  # the first samples may be of another family
            kind.samples = kind.samples[-NEEDED:]
            varying = fit(kind.samples, kinds)
        if varying is None or not varying.symbols:
            return
        keyless = sum(state.key is None for state in states)
        chain = Chain(states, keyless, reading, varying, self._inference)
        kind.varying = varying
        if not chain.segments:
            return
        if chain.of_left:
            chains = self._left.setdefault(reading.skeletons[:keyless], [])
            chains[:] = [chain, *chains][:AT_ONCE]
            while len(self._left) > MOST:
                del self._left[next(iter(self._left))]
            return
        if kind.grow is not None:
            place = _place(states, kind.begins)
            other_grows = tuple([grow for grow in place.sizes.grows if grow is not kind.grow])
            place.sizes = place.sizes._replace(grows=other_grows)
        kind.grow, kind.begins = partial(chain.grow, 0, ()), chain.begins
        _begin_at(kind, states)


def _begin_at(kind: Kind, states: Sequence[State]) -> None:
    """Attach the family's chain to the trace with these states."""
    place = _place(states, kind.begins)
    grows = place.sizes.grows
    if kind.grow is not None and kind.grow not in grows:
        place.sizes = place.sizes._replace(grows=(kind.grow, *grows)[:AT_ONCE])


def _place(states: Sequence[State], number: int) -> State:
    """Return the state with this number, or the parent of the first one for -1."""
    place = states[number] if number >= 0 else states[0].parent
    assert place is not None
    return place


def _plain(state: State) -> list[State]:
    """Return the states from the first one on, up to the first that is more than a single plain record.

    Decisions of a cut must not be skipped, so a chain contains none.
    """
    path: list[State] = []
    step: State | None = state
    while step is not None and step.recorded:
        path.append(step)
        step = step.parent
    path.reverse()
    for number, candidate in enumerate(path):
        if len(candidate.recorded) != 1 or candidate.traits.collective:
            return path[:number]
        if candidate.marks.ends is not None:
            return path[: number + 1]
    return path
