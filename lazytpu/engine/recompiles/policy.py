"""The reaction to frequent recompiles of a step: `options.on_recompile` and its budget."""

from __future__ import annotations

import warnings
from typing import Any

from lazytpu.options import options


class RecompileWarning(UserWarning):
    """A step was recompiled more often than `options.recompile_budget` allows."""


class RecompileError(RuntimeError):
    """Raised instead of a recompile beyond the budget. Tensors keep their values from before the step, whose results
    are lost; running it again with another setting computes them."""


def apply(text: str, line: Any, recompiles: int) -> None:
    """Warn or raise RecompileError if `recompiles` exceeds the budget, as `options.on_recompile` says. `text` is the
    reason, and `line` the user's line for the warning."""
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
    warn(message, RecompileWarning, line)


def warn(message: str, category: type[Warning], line: Any) -> None:
    """Warn at the user's line, if that is known."""
    if line is None:
        warnings.warn(message, category, stacklevel=2)
    else:
        warnings.warn_explicit(message, category, line.file, line.line)
