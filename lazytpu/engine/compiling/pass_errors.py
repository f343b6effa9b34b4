"""The count and warning of passes that failed and were left out of a program. Loads neither xDSL nor a pass."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from lazytpu.engine.errors.unexpected import Unexpected
from lazytpu.inspection.terminal import say
from lazytpu.passes.registry import passes

if TYPE_CHECKING:
    from lazytpu.passes.errors import PassError

PASS_ERRORS = Unexpected()
"""The pass errors of this process. Each is a bug, and the project's tests fail on it."""

WARNED: dict[str, object] = {}
"""The names of passes for which a warning was issued."""


class PassWarning(UserWarning):
    """A pass has a bug, and programs are compiled without it."""


def left_out(error: PassError, program: str) -> str:
    """Count a pass that is left out for this error, warn once per pass, and return a note for `lazytpu.explain()`."""
    name, first = error.by, str(error).partition("\n")[0]
    assert name is not None
    PASS_ERRORS.note(f"running the passes over {program}", error)
    error.__traceback__ = error.__cause__ = error.__context__ = (
        None  # frames of these keep the trace and its buffers alive
    )
    mine = object()
    if WARNED.setdefault(name, mine) is mine:
        registered = passes().get(name)
        user_defined = registered is not None and not registered.built_in
        todo = (
            f"Mend it, or switch it off: lazytpu.passes.unregister({name!r})." if user_defined else "Please report it."
        )
        _warn(
            f"lazytpu compiles {program}, and others for which it fails, without the pass {name!r}. The values are "
            f"right; the program may be slower. {error}\n{todo} lazytpu.metrics()['pass_errors'] counts such programs."
        )
    return f"without the pass {name!r}: {first}"


def _warn(message: str) -> None:
    try:
        warnings.warn(message, PassWarning, stacklevel=2)
    except PassWarning:  # where warnings are errors: this warning must not fail a step
        say(message)
