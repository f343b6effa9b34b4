"""The size limit of a trace: lazy mode without a cut does not grow for ever."""

from __future__ import annotations

import warnings

from lazytpu.frontend.lines import user_line


class TraceLimitWarning(UserWarning):
    """A trace reached its size limit and was cut without being asked to."""


def warn_full(depth: int) -> None:
    """Say where, and what to do."""
    warnings.warn(
        f"{depth} ops were recorded without a cut, so lazytpu cuts here ({user_line()}). Call lazytpu.mark_step() at "
        f"the end of each training step, or raise the limit (LAZYTPU_TRACE_LIMIT, now {depth}).",
        TraceLimitWarning,
        stacklevel=2,
    )
