"""Warnings of the CPU's kernels that torch's meta functions do not give, op by op. Given on the miss path: where the
CPU warns at each call, a call that is recorded again, from any line, warns no more."""

from __future__ import annotations

from math import prod
from typing import Any

from torch._ops import OpOverload

from lazytpu.frontend.lines import warn_user

_SPREADS = {f"aten.{name}.correction": name for name in ("std", "var", "std_mean", "var_mean")}


def warn(op: OpOverload, bound: dict[str, Any], layouts: tuple[Any, ...]) -> None:
    """Give the CPU's warnings for these arguments, at the user's line. `layouts` are those of the results."""
    name = _SPREADS.get(str(op))
    if name is None:
        return
    correction, results = bound.get("correction"), prod(layouts[0].shape)
    reduced = bound["self"].numel() // results if results else 0
    if reduced - (1 if correction is None else correction) <= 0:
        warn_user(
            f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor "
            "(input numel divided by output numel)."
        )
