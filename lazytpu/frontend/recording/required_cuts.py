"""Cuts that are required before a record. Only misses check for them: a state before such a cut has no edges."""

from __future__ import annotations

import warnings
from typing import Any

from lazytpu.frontend import activation
from lazytpu.frontend.lines import user_line
from lazytpu.options import options
from lazytpu.trace.cuts import BEGIN, BRANCH, IDLE, LIMIT, STEP
from lazytpu.trace.trie import NOTHING, Ended, State

IDLE_AFTER = 1024  # records: about 5 ms of host time, in which an idle device could compute

# A cut and a launch take about 0.3 ms, and compiling a record 5 ms. Up to this many traces per record, cutting is
# cheaper than compiling again.
BRANCHES_PER_RECORD = 16

# Maximum records, by key, before which a trace is cut at one state. Beyond it (for example where each evaluation uses
# its results differently), all new traces end there, and no key is kept.
STARTS = 16


class CutRequired(Exception):
    """Raised when the trace has to be cut before this op, for a `cause`. The op is then recorded again; users never see
    it."""

    def __init__(self, cause: str):
        super().__init__(cause)
        self.cause = cause


class TraceLimitWarning(UserWarning):
    """A trace reached its size limit, and lazytpu cut it."""


def check_required_cuts(parent: State, key: tuple[Any, ...], fused: bool) -> None:
    """Raise CutRequired when the trace at `parent` has to be cut before the record of `key`."""
    if isinstance(parent, Ended):
        raise CutRequired(STEP)
    if fused and parent.ends is not None:
        raise CutRequired(parent.ends)
    if fused and key in parent.starts and not _is_worn(parent, key):
        raise CutRequired(parent.starts[key])
    if parent.depth >= options.trace_limit:
        _warn_full(parent.depth)
        raise CutRequired(LIMIT)


def note_start(parent: State, key: tuple[Any, ...], cause: str = BEGIN) -> None:
    """Mark the record of `key` as the start of a step: raise CutRequired if anything was recorded before it, now and in
    later traces."""
    if parent.depth:
        _cut_before(parent, key, cause)


def note_branch(parent: State, key: tuple[Any, ...]) -> None:
    """Cut where the results of an evaluated model are used differently than before, as by a `cat` of results that grow.

    The cut is made now and in later traces, so that the model is not compiled again with each use. The records so far
    become a program of their own, if no trace ended there yet. The first use was compiled together with the model. The
    second is not: a program of the model alone costs the same, and also serves the third.
    """
    has_other_uses = parent.next or (parent.plan is not None and parent.plan.known)
    if has_other_uses and key not in parent.branches:
        parent.branches = {**parent.branches, key: 0}
        _cut_before(parent, key, BRANCH)


def _cut_before(parent: State, key: tuple[Any, ...], cause: str) -> None:
    """Cut before this record, now and in later traces."""
    parent.starts = {**parent.starts, key: cause}
    if len(parent.starts) > STARTS:
        parent.ends, parent.starts, parent.branches = cause, NOTHING, NOTHING
    raise CutRequired(cause)


def _is_worn(parent: State, key: tuple[Any, ...]) -> bool:
    """Return whether traces continued after a branch so often that a program of both parts pays off; then they are no
    longer cut there."""
    taken = parent.branches.get(key)
    if taken is None:
        return False
    parent.branches = {**parent.branches, key: taken + 1}
    if taken < BRANCHES_PER_RECORD * parent.depth:
        return False
    parent.starts = {start: cause for start, cause in parent.starts.items() if start != key}
    return True


def note_idle(state: State) -> None:
    """End a trace outside a step at the new `state`, when it is long and the device is idle.

    A step is one program, however long its recording takes. A trace that ended at a state always ends there, so the
    device's timing does not change programs later.
    """
    if state.depth % IDLE_AFTER >= len(state.recorded) or state.in_step or state.loop is not None:
        return
    if activation.engine().idle():
        state.ends = IDLE


def _warn_full(depth: int) -> None:
    """Warn with the place and a remedy: in lazy mode a trace without a cut must not grow forever."""
    warnings.warn(
        f"{depth} ops were recorded without a cut, so lazytpu cuts here ({user_line()}). Call lazytpu.mark_step() at "
        f"the end of each training step, or raise the limit (LAZYTPU_TRACE_LIMIT, now {depth}).",
        TraceLimitWarning,
        stacklevel=2,
    )
