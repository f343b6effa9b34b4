"""`mode=` and `options=` of torch.compile on the device. The names are inductor's; only max-autotune has an effect.

A library sets options that its user cannot leave out (FlexAttention of TorchTitan does), so an option that only changes
the code that inductor generates is ignored, which a warning says once. An option that is given a function, such as a
pass over the graph, is refused: it would change what is computed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from lazytpu.frontend import activation
from lazytpu.frontend.lines import user_line
from lazytpu.frontend.torch_private import inductor_options

MODES = {"default": False, "reduce-overhead": False, "max-autotune": True, "max-autotune-no-cudagraphs": True}
"Mode -> whether it selects passes per program. A step is one launch in every mode, so no overhead can be reduced."
OPTIONS = ("max_autotune", "triton.cudagraphs", "coordinate_descent_tuning")
"The options that inductor's modes set, which are ignored silently but for the first: it chooses passes."


class TuningWarning(UserWarning):
    """An option or a mode of torch.compile has no effect on the device."""


_told: set[str] = set()
"""The subjects of the warnings so far: "" for max-autotune, or an option."""


def tunes(mode: str | None, options: Mapping[str, Any] | None) -> bool:
    """Return whether passes are selected for programs with a graph. Warns once if this is requested but impossible.

    Raises ValueError for an unknown mode, RuntimeError for an option that inductor does not have, as torch does for
    other devices, and NotImplementedError for an option whose value is a function.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile has no mode {mode!r}; on 'tpu' the modes are {', '.join(MODES)}")
    chosen = {name.replace("-", "_"): value for name, value in (options or {}).items()}
    for name, value in chosen.items():
        if name not in OPTIONS:
            _ignore(name, value)
    wanted = MODES[mode or "default"] or bool(chosen.get("max_autotune"))
    reason = activation.engine().untunable() if wanted else None
    if reason is not None:
        _tell("", f"mode='max-autotune' tunes nothing, and compiles as without it: {reason}")
    return wanted and reason is None


def _ignore(name: str, value: Any) -> None:
    """Warn that an option of inductor has no effect; raise an error for one that cannot be ignored."""
    if name not in inductor_options():
        raise RuntimeError(
            f"Unexpected optimization option {name}: inductor has no such option. On 'tpu' {OPTIONS[0]} has an effect, "
            "others of inductor have none. Settings of lazytpu are in lazytpu.options"
        )
    if _holds_function(value):
        raise NotImplementedError(
            f"torch.compile on 'tpu' has no option {name!r} with a function: inductor would call it for each graph, "
            "and it generates no code for this device. Write it as a pass (docs/writing-a-pass.md), or leave it out"
        )
    _tell(name, f"the option {name!r} of inductor has no effect on 'tpu', for which inductor generates no code")


def _holds_function(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_function, value.values()))
    return any(map(_holds_function, value)) if isinstance(value, list | tuple | set) else callable(value)


def _tell(subject: str, text: str) -> None:
    if subject in _told:
        return
    _told.add(subject)
    line = user_line()
    warnings.warn_explicit(text, TuningWarning, "" if line is None else line.file, 0 if line is None else line.line)
