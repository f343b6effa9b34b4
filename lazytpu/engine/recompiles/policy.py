"""What happens when a step is compiled anew too often: `options.on_recompile` and its budget."""

from __future__ import annotations

import warnings
from typing import Any

from lazytpu.options import options


class RecompileWarning(UserWarning):
    """A step was compiled anew more often than `options.recompile_budget` allows."""


class RecompileError(RuntimeError):
    """The same, as an error: raised instead of compiling. Tensors are what they were before the step, whose results
    are lost; they are computed when it is run again with another setting."""


def apply(text: str, line: Any, recompiles: int) -> None:
    """A step is about to be compiled anew for the `recompiles`-th time, because of `text`.

    Beyond the budget this warns, at the user's `line`, or raises RecompileError, as `options.on_recompile` says.
    """
    action = options.on_recompile
    if action == "ignore" or recompiles <= options.recompile_budget:
        return
    message = (
        f"this step would be compiled anew for the {recompiles}. time, where lazytpu.options.recompile_budget allows "
        f"{options.recompile_budget}, because: {text}. lazytpu.explain() lists all of them"
    )
    if action == "raise":
        raise RecompileError(
            f"{message}. Nothing was compiled: tensors are what they were before the step, and its results are lost. "
            'To have them computed, set lazytpu.options.on_recompile to "warn" or raise the budget.'
        )
    if line is None:
        warnings.warn(message, RecompileWarning, stacklevel=2)
    else:
        warnings.warn_explicit(message, RecompileWarning, line.file, line.line)
