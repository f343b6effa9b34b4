"""Passes that failed and were left out of a program: the count and the warning. Loads neither xDSL nor a pass."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from lazytpu.engine.sizes.unexpected import Unexpected
from lazytpu.inspection.terminal import say
from lazytpu.passes.registry import passes

if TYPE_CHECKING:
    from lazytpu.passes.errors import PassError

PASS_ERRORS = Unexpected()
"Those of this process. Each is a bug, and the project's tests fail where there is one."

WARNED: dict[str, object] = {}
"The names of the passes that were warned of."


class PassWarning(UserWarning):
    """A pass has a bug, and programs are compiled without it."""


def left_out(error: PassError, program: str) -> str:
    """Count a pass that is left out of a program for this error, and warn once per pass. Returns what
    `lazytpu.explain()` says of it."""
    name, first = error.by, str(error).partition("\n")[0]
    assert name is not None
    PASS_ERRORS.note(f"running the passes over {program}", error)
    error.__traceback__ = error.__cause__ = error.__context__ = None  # their frames hold the trace and its buffers
    mine = object()
    if WARNED.setdefault(name, mine) is mine:
        known = passes().get(name)
        own = known is not None and not known.built_in
        todo = f"Mend it, or switch it off: lazytpu.passes.unregister({name!r})." if own else "Please report it."
        _warn(
            f"lazytpu compiles {program}, and others for which it fails, without the pass {name!r}. The values are "
            f"right; the program may be slower. {error}\n{todo} lazytpu.metrics()['pass_errors'] counts such programs."
        )
    return f"without the pass {name!r}: {first}"


def _warn(message: str) -> None:
    try:
        warnings.warn(message, PassWarning, stacklevel=2)
    except PassWarning:  # where warnings are errors; no step may fail because of this one
        say(message)
