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

# A cut and a launch take about 0.3 ms, to compile a record 5 ms: so often it is cheaper to cut than to compile anew.
BRANCHES_PER_RECORD = 16

# The records before which a trace is cut at one place, each with its key. Where more come, as where the results of each
# evaluation are used in a way of its own, all new traces end from then on, and none of the keys is kept.
STARTS = 16


class CutRequired(Exception):
    """The trace has to be cut before this op, for a `cause`. The op is then recorded again; users never see this."""

    def __init__(self, cause: str):
        super().__init__(cause)
        self.cause = cause


class TraceLimitWarning(UserWarning):
    """A trace reached its size limit, and lazytpu cut it."""


def check_required_cuts(parent: State, key: tuple[Any, ...], fused: bool) -> None:
    """Raise CutRequired when the trace that is at `parent` has to be cut before the record of `key`."""
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
    """A step begins with the record of `key`: raise CutRequired if anything was recorded before it, now and in later
    traces."""
    if parent.depth:
        _cut_before(parent, key, cause)


def note_branch(parent: State, key: tuple[Any, ...]) -> None:
    """The results of an evaluated model are used in another way than before, as by a `cat` of results that grow: cut,
    now and in later traces, so that the model is not compiled again together with each use. What was recorded so far is
    a program from now on, if no trace ended there yet. The first way was compiled with the model. The second is not: a
    program of the model alone costs the same, and serves the third as well."""
    ways = parent.next or (parent.plan is not None and parent.plan.known)
    if ways and key not in parent.branches:
        parent.branches = {**parent.branches, key: 0}
        _cut_before(parent, key, BRANCH)


def _cut_before(parent: State, key: tuple[Any, ...], cause: str) -> None:
    """Cut before this record, now and in later traces."""
    parent.starts = {**parent.starts, key: cause}
    if len(parent.starts) > STARTS:
        parent.ends, parent.starts, parent.branches = cause, NOTHING, NOTHING
    raise CutRequired(cause)


def _is_worn(parent: State, key: tuple[Any, ...]) -> bool:
    """Whether a trace went on after a branch so often that a program of both parts pays. It is cut there no more."""
    taken = parent.branches.get(key)
    if taken is None:
        return False
    parent.branches = {**parent.branches, key: taken + 1}
    if taken < BRANCHES_PER_RECORD * parent.depth:
        return False
    parent.starts = {other: cause for other, cause in parent.starts.items() if other != key}
    return True


def note_idle(state: State) -> None:
    """End a trace outside of a step at the new `state`, when it is long and the device has nothing to do. A step is one
    program, however long its recording takes. A trace that ended at a state always ends there, so the device's timing
    does not change programs later."""
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
