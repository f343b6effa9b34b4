"""The memory limit of the trie: LRU eviction of traces, with the states that belong to no other trace (R2)."""

from __future__ import annotations

import itertools
import threading

from lazytpu.trace.trie import CutPlan, State

STATE_BYTES = 2_000  # a state with its record and key, measured on the training step of a GPT
LIMIT_BYTES = 512 << 20  # some 260,000 states


class Traces:
    """The states at which traces have ended, in the order of their last cut."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES):
        self.limit = limit_bytes // STATE_BYTES
        self.states = 0
        self._ends: dict[State, int] = {}
        self._clock = itertools.count()
        self._evicting = threading.Lock()

    def ended(self, state: State) -> CutPlan:
        """Return the plan of a trace that ends at `state`, and mark the trace as most recently used."""
        self._ends[state] = next(self._clock)
        plan = state.plan
        if plan is None:
            plan = state.plan = CutPlan.of(state)
            self.states += _own_states(state)
            if self.states > self.limit:
                with self._evicting:
                    self._evict(state)
        return plan

    def forget_programs(self) -> None:
        """Drop the programs of all traces, so that the next cut of each compiles one."""
        for state in list(self._ends):
            if state.plan is not None:
                state.plan.programs.clear()
                state.plan.jobs.clear()
                state.plan.steps.clear()
                state.plan.whole.clear()
                state.plan.sized = None

    def _evict(self, keep: State) -> None:
        """Remove traces, oldest first, until a quarter of the limit is free. The states on the path to `keep` stay."""
        path = {id(s) for s in _path(keep)}
        for end in sorted(self._ends, key=self._ends.__getitem__):
            if self.states <= self.limit * 3 // 4 or end is keep:
                break
            self._ends.pop(end, None)
            end.plan = None
            self.states -= _remove(end, path)


def _path(state: State | None) -> list[State]:
    path: list[State] = []
    while state is not None:
        path.append(state)
        state = state.parent
    return path


def _own_states(end: State) -> int:
    """Return the number of states that this trace adds to the trie: from `end` to the first state where another trace
    branches off or ends. A compiled graph counts one state per record."""
    count = 0
    for state in _path(end):
        if state.key is None or (count and (len(state.next) > 1 or state.plan is not None)):
            # A state without a key is the root, or belongs to an extracted part, which the plan of its trace keeps
            # alive.
            break
        count += max(1, len(state.recorded))
    return count


def _remove(end: State, path: set[int]) -> int:
    """Remove the branch that ends here, up to the first state that is still in use. Returns the number of removed
    states."""
    removed = 0
    state = end
    while state.key is not None and not state.next and state.plan is None and id(state) not in path:
        parent = state.parent
        assert parent is not None
        parent.remove(state)
        removed += max(1, len(state.recorded))
        state = parent
    return removed
