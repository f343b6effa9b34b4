"""Where a trace ends before a record: asked on misses, since the states after which one ends have no way on."""

from __future__ import annotations

import warnings
from typing import Any

from lazytpu.frontend.lines import user_line
from lazytpu.options import options
from lazytpu.trace.cuts import BEGIN, BLOCK, LIMIT, STEP
from lazytpu.trace.trie import Ended, State


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
    if fused and parent.ends:
        raise TraceEnds(BLOCK)
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


def _warn_full(depth: int) -> None:
    """Say where, and what to do: lazy mode without a cut does not grow for ever."""
    warnings.warn(
        f"{depth} ops were recorded without a cut, so lazytpu cuts here ({user_line()}). Call lazytpu.mark_step() at "
        f"the end of each training step, or raise the limit (LAZYTPU_TRACE_LIMIT, now {depth}).",
        TraceLimitWarning,
        stacklevel=2,
    )
