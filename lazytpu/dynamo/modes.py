"""`mode=` and `options=` of torch.compile on the device. The names are inductor's; only max-autotune has an effect."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from lazytpu.frontend import activation
from lazytpu.frontend.lines import user_line

MODES = {"default": False, "reduce-overhead": False, "max-autotune": True, "max-autotune-no-cudagraphs": True}
"Mode -> whether it selects passes per program. A step is one launch in every mode, so no overhead can be reduced."
OPTIONS = ("max_autotune", "triton.cudagraphs", "coordinate_descent_tuning")
"The options that inductor's modes set. Only the first has an effect on the device."


class TuningWarning(UserWarning):
    """max-autotune was requested, but the device has no choice of passes."""


_told = False


def tunes(mode: str | None, options: Mapping[str, Any] | None) -> bool:
    """Return whether passes are selected for programs with a graph. Warns once if this is requested but impossible.

    Raises ValueError for an unknown mode, and NotImplementedError for options without a meaning here.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile has no mode {mode!r}; on 'tpu' the modes are {', '.join(MODES)}")
    chosen = {name.replace("-", "_"): value for name, value in (options or {}).items()}
    unknown = [name for name in chosen if name not in OPTIONS]
    if unknown:
        raise NotImplementedError(
            f"torch.compile on 'tpu' has no option {' and no option '.join(map(repr, unknown))}; its options are "
            f"{', '.join(OPTIONS)}, as modes set them. Inductor's others change code that it generates, and it "
            "generates none for this device: leave them out. Settings of lazytpu are in lazytpu.options"
        )
    wanted = MODES[mode or "default"] or bool(chosen.get("max_autotune"))
    reason = activation.engine().untunable() if wanted else None
    if reason is not None:
        _tell(reason)
    return wanted and reason is None


def _tell(reason: str) -> None:
    global _told
    if _told:
        return
    _told = True
    line = user_line()
    text = f"mode='max-autotune' tunes nothing, and compiles as without it: {reason}"
    warnings.warn_explicit(text, TuningWarning, "" if line is None else line.file, 0 if line is None else line.line)
