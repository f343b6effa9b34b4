"""Where a trace ends before a record: asked on misses, since the states after which one ends have no way on."""

from __future__ import annotations

import warnings
from typing import Any

from lazytpu.frontend import ports
from lazytpu.frontend.recording.lines import user_line
from lazytpu.options import options
from lazytpu.trace.cuts import BEGIN, IDLE, LIMIT, STEP
from lazytpu.trace.trie import Ended, State

IDLE_AFTER = 1024  # records: some 5 ms of the host, in which an idle device could compute


class TraceEnds(Exception):
    """The trace ends before this op, for a `cause`: it is cut and the op recorded anew (never seen by users)."""

    def __init__(self, cause: str):
        super().__init__(cause)
        self.cause = cause


class TraceLimitWarning(UserWarning):
    """A trace reached its size limit and was cut without being asked to."""


def check_known_ends(parent: State, key: tuple[Any, ...], fused: bool) -> None:
    """Raise TraceEnds when the trace that is at `parent` has to be cut before the record of `key`."""
    if isinstance(parent, Ended):
        raise TraceEnds(STEP)
    if fused and parent.ends is not None:
        raise TraceEnds(parent.ends)
    if fused and key in parent.starts:
        raise TraceEnds(BEGIN)
    if parent.depth >= options.trace_limit:
        _warn_full(parent.depth)
        raise TraceEnds(LIMIT)


def note_start(parent: State, key: tuple[Any, ...]) -> None:
    """A step begins with the record of `key`: raise TraceEnds when something was recorded before, now and in future."""
    if parent.depth:
        parent.starts = {*parent.starts, key}
        raise TraceEnds(BEGIN)


def note_idle(state: State) -> None:
    """Let a trace outside of a step end at `state`, a new one, when it is long and the device has nothing to do. A step
    is one program, however long it is recorded for; and once a trace ends somewhere it ends there always, so that when
    the device is idle decides no program twice."""
    if state.depth % IDLE_AFTER == 0 and not state.in_step and state.loop is None and ports.engine().idle():
        state.ends = IDLE


def _warn_full(depth: int) -> None:
    """Say where, and what to do: lazy mode without a cut does not grow for ever."""
    warnings.warn(
        f"{depth} ops were recorded without a cut, so lazytpu cuts here ({user_line()}). Call lazytpu.mark_step() at "
        f"the end of each training step, or raise the limit (LAZYTPU_TRACE_LIMIT, now {depth}).",
        TraceLimitWarning,
        stacklevel=2,
    )
