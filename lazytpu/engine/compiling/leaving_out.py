"""The boundary around the passes of a program: what to compile when one of them has a bug.

A failed pass has half rewritten the module, so the trace is imported again and goes through the pipeline without that
pass. The registry says which passes are required: their errors are raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lazytpu.passes.errors import PassError
from lazytpu.passes.pipeline import without
from lazytpu.passes.registry import passes as known_passes

Made = TypeVar("Made")


def leaving_out(attempt: Callable[[str, bool], Made], passes: str, verify: bool) -> tuple[Made, list[PassError]]:
    """What `attempt` makes with a pipeline, and the errors of the passes that this lacks.

    `attempt` takes the pipeline and whether to verify the module after each pass, and begins with a fresh module.
    Raises PassError where a required pass fails, or any refuses the module.
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
        rest = passes if name is None else without(passes, name)
        if name is None or rest == passes or known_passes()[name].required:
            raise culprit
        errors.append(culprit)
        passes, verify = rest, True


def _located(attempt: Callable[[str, bool], object], passes: str, error: PassError) -> PassError:
    """The error of the pass that is to blame. Where the module is not verified after each pass, it may be an earlier
    one than that which failed."""
    try:
        attempt(passes, True)
    except PassError as located:
        return located
    return error
