"""Cuts that are required before a record. Only misses check for them: a state before such a cut has no edges."""

from __future__ import annotations

import warnings
from typing import Any

from lazytpu.frontend import activation
from lazytpu.frontend.lines import user_line
from lazytpu.options import options
from lazytpu.trace.cuts import BEGIN, BRANCH, IDLE, LIMIT, STEP
from lazytpu.trace.trie import Ended, Marks, State

IDLE_AFTER = 1024  # records: about 5 ms of host time, in which an idle device could compute

# A cut and a launch take about 0.3 ms, and compiling a record 5 ms. Up to this many traces per record, cutting is
# cheaper than compiling again.
BRANCHES_PER_RECORD = 16

# Maximum records, by key, before which a trace is cut at one state. Beyond it (for example where each evaluation uses
# its results differently), all new traces end there, and no key is kept.
STARTS = 16


class TraceLimitWarning(UserWarning):
    """A trace reached its size limit, and lazytpu cut it."""


def required_cut(parent: State, key: tuple[Any, ...], fused: bool) -> str | None:
    """Return the cause of a cut that the trace at `parent` needs before the record of `key`, or None."""
    if isinstance(parent, Ended):
        return STEP
    marks = parent.marks
    if fused and marks.ends is not None:
        return marks.ends
    if fused and key in marks.starts and not _is_worn(parent, key):
        return marks.starts[key]
    if parent.depth >= options.trace_limit:
        _warn_full(parent.depth)
        return LIMIT
    return None


def note_start(parent: State, key: tuple[Any, ...], cause: str = BEGIN) -> str | None:
    """Mark the record of `key` as the start of a step. Returns the cause of a cut before it, now and in later traces,
    if anything was recorded before it."""
    return _cut_before(parent, key, cause) if parent.depth else None


def note_branch(parent: State, key: tuple[Any, ...]) -> str | None:
    """Return the cause of a cut where the results of an evaluated model are used differently than before, as by a `cat`
    of results that grow, or None.

    The cut is made now and in later traces, so that the model is not compiled again with each use. The records so far
    become a program of their own, if no trace ended there yet. The first use was compiled together with the model. The
    second is not: a program of the model alone costs the same, and also serves the third.
    """
    has_other_uses = parent.next or (parent.plan is not None and parent.plan.known)
    if not has_other_uses or key in parent.marks.branches:
        return None
    parent.marks = parent.marks._replace(branches={**parent.marks.branches, key: 0})
    return _cut_before(parent, key, BRANCH)


def _cut_before(parent: State, key: tuple[Any, ...], cause: str) -> str:
    """Cut before this record, now and in later traces."""
    starts = {**parent.marks.starts, key: cause}
    full = len(starts) > STARTS
    parent.marks = Marks(parent.marks.loop, cause) if full else parent.marks._replace(starts=starts)
    return cause


def _is_worn(parent: State, key: tuple[Any, ...]) -> bool:
    """Return whether traces continued after a branch so often that a program of both parts pays off; then they are no
    longer cut there."""
    marks = parent.marks
    taken = marks.branches.get(key)
    if taken is None:
        return False
    pays_off = taken >= BRANCHES_PER_RECORD * parent.depth
    starts = {start: cause for start, cause in marks.starts.items() if start != key or not pays_off}
    parent.marks = marks._replace(starts=starts, branches={**marks.branches, key: taken + 1})
    return pays_off


def note_idle(state: State) -> None:
    """End a trace outside a step at the new `state`, when it is long and the device is idle.

    A step is one program, however long its recording takes. A trace that ended at a state always ends there, so the
    device's timing does not change programs later.
    """
    if state.depth % IDLE_AFTER >= len(state.recorded) or state.traits.in_step or state.marks.loop is not None:
        return
    if activation.engine().idle():
        state.marks = state.marks._replace(ends=IDLE)


def _warn_full(depth: int) -> None:
    """Warn with the place and a remedy: in lazy mode a trace without a cut must not grow forever."""
    warnings.warn(
        f"{depth} ops were recorded without a cut, so lazytpu cuts here ({user_line()}). Call lazytpu.mark_step() at "
        f"the end of each training step, or raise the limit (LAZYTPU_TRACE_LIMIT, now {depth}).",
        TraceLimitWarning,
        stacklevel=2,
    )
