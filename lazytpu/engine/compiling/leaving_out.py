"""The error boundary around the passes of a program: compile without a pass that has a bug.

A failed pass leaves the module half rewritten, so the trace is imported again and run through the pipeline without that
pass. Errors of passes that the registry marks as required are raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lazytpu.passes.errors import PassError
from lazytpu.passes.pipeline import without
from lazytpu.passes.registry import passes as known_passes

Made = TypeVar("Made")


def leaving_out(attempt: Callable[[str, bool], Made], passes: str, verify: bool) -> tuple[Made, list[PassError]]:
    """Return the result of `attempt` with a pipeline, and the errors of passes that were left out.

    `attempt` takes the pipeline and whether to verify the module after each pass, and starts from a fresh module. Raise
    PassError if a required pass fails, or any pass refuses the module.
    """
    errors: list[PassError] = []
    while True:
        try:
            return attempt(passes, verify), errors
        except PassError as error:
            if error.by is None:
                raise
            culprit = error if verify else _located(attempt, passes, error)
        name = culprit.by
        remaining = passes if name is None else without(passes, name)
        if name is None or remaining == passes or known_passes()[name].required:
            raise culprit
        errors.append(culprit)
        passes, verify = remaining, True


def _located(attempt: Callable[[str, bool], object], passes: str, error: PassError) -> PassError:
    """Return the error of the pass that caused a failure. Without verification after each pass, an earlier pass may be
    the cause."""
    try:
        attempt(passes, True)
    except PassError as located:
        return located
    return error
