"""The chains of all shape families (`chains`), and the trie states at which they begin."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from lazytpu.engine.errors.unexpected import looking_for
from lazytpu.engine.sizes.chains import AT_ONCE, Chain
from lazytpu.engine.sizes.skeletons import Integers, trace_apart
from lazytpu.engine.sizes.templates import Forms, Template
from lazytpu.ports import Inference
from lazytpu.trace.trie import Grow, State

MOST = 256  # traces with chains, the newest


class Growth:
    """The chains. `learn` takes the states at which traces end."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._chains: dict[Any, tuple[Forms, Chain, Grow]] = {}
        self._left: dict[Any, list[Chain]] = {}
        self._lock = threading.Lock()

    @looking_for("chains")
    def learn(self, state: State, template: Template, forms: Forms, sizes: dict[str, int]) -> None:
        """Let the chain of a trace that ended at `state` derive its states at other sizes. `forms` give the integers of
        the trace at these `sizes`."""
        states = [] if state.sizes.grown else _plain(state)
        if not states or states[-1].key is None:
            return
        records = [state.recorded[0] for state in states]
        lines = [None if record.in_backward else record.line for record in records]
        key = template, tuple([(state.key and state.key[0], line) for state, line in zip(states, lines, strict=True)])
        with self._lock:
            previous = self._chains.pop(key, None)
            if previous is None or previous[0] is not forms:
                chain = Chain(states, forms.varying, sizes, self._inference)
                if chain.of_left and chain.segments:
                    structure = tuple(trace_apart(records[: chain.left], Integers([], [])))
                    chains = self._left.setdefault(structure, [])
                    chains[:] = [chain, *chains][:AT_ONCE]
                self._chains[key] = forms, chain, partial(chain.grow, 0, {})
            else:  # torch disagreed, or this is the trie of another mode
                self._chains[key] = previous
            for registry in (self._chains, self._left):
                while len(registry) > MOST:
                    del registry[next(iter(registry))]
            _, chain, grow = self._chains[key]
            if chain.segments and not chain.of_left:
                place = states[chain.begins] if chain.begins >= 0 else states[0].parent
                assert place is not None
                replaced = grow, None if previous is None else previous[2]
                others = [other for other in place.sizes.grows if other not in replaced]
                place.sizes = place.sizes._replace(grows=(grow, *others)[:AT_ONCE])

    def on_left(self, state: State) -> Sequence[Grow]:
        """Return the functions that add states after `state`, at which the records end that an earlier read left
        behind."""
        with looking_for("chains behind a read"):
            leftover = _plain(state)
            if not leftover or leftover[-1] is not state:  # a prefix does not determine the slots after it
                return ()
            with self._lock:
                if not self._left:
                    return ()
                structure = tuple(trace_apart(state.records(), into := Integers([], [])))
                return tuple([partial(chain.grow_on_left, into.values) for chain in self._left.get(structure, ())])
        return ()


def _plain(state: State) -> list[State]:
    """Return the states from the first one on, up to the first that is more than a single plain record.

    Decisions of a cut must not be skipped, so a chain contains none.
    """
    path = [step for step in state.path() if step.recorded]
    for number, candidate in enumerate(path):
        if len(candidate.recorded) != 1 or candidate.traits.collective:
            return path[:number]
        if candidate.marks.ends is not None:
            return path[: number + 1]
    return path
