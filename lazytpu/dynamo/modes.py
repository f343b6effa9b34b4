"""`mode=` and `options=` of torch.compile on the device: inductor's names, of which one has a meaning here."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from lazytpu.frontend import activation
from lazytpu.frontend.lines import user_line

MODES = {"default": False, "reduce-overhead": False, "max-autotune": True, "max-autotune-no-cudagraphs": True}
"The modes, and whether each chooses passes for a program. A step is one launch in all of them: no overhead to reduce."
OPTIONS = ("max_autotune", "triton.cudagraphs", "coordinate_descent_tuning")
"The options that inductor's modes stand for. Only the first means something for the device."


class TuningWarning(UserWarning):
    """max-autotune was asked for where there is nothing to choose."""


_told = False


def tunes(mode: str | None, options: Mapping[str, Any] | None) -> bool:
    """Whether passes are to be chosen for the programs with a graph. Where that is not possible, it is said once.

    Raises ValueError for an unknown mode, and NotImplementedError for options that mean nothing here.
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
